"""What the environment tells the client; read when configs are loaded, never at import."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

URL, OFFLINE, FILE = "TUNER_API_URL", "TUNER_OFFLINE", "TUNER_CONFIG_FILE"
GENERATION, STRICT = "TUNER_GENERATION", "TUNER_STRICT"
CACHE_DIR, KERNEL_HASH = "TUNER_CACHE_DIR", "TUNER_KERNEL_HASH"
OWN = (URL, OFFLINE, FILE, GENERATION, STRICT, CACHE_DIR, KERNEL_HASH)
OTHERS = (
    *("TUNER_DATABASE_URL", "TUNER_API_TOKEN", "TUNER_RATE_LIMIT"),
    *("TUNER_DEVICE", "TUNER_LISTEN", "TUNER_WORKERS"),
)
"""What the rest of the project reads."""
NO = ("", "0", "false", "no", "off")
LIKE = 0.8
"""How alike two names are, at most 1, before one is taken for the other misspelt."""


class ClientSettings:
    """url: of the service, without a slash at its end; None: no server is asked.

    file: a snapshot to use before all else. generation: the id of one to use and no other.
    strict: what would be given way on raises. folders: where to keep snapshots, the best first.
    problems: what was not understood, as sentences.
    """

    __slots__ = (
        *("file", "folders", "generation", "kernel_hash"),
        *("offline", "problems", "strict", "url"),
    )

    def __init__(
        self,
        url: str | None,
        offline: bool,
        file: str | None,
        generation: str | None,
        strict: bool,
        kernel_hash: str | None,
        folders: tuple[str, ...],
        problems: tuple[str, ...] = (),
    ) -> None:
        self.url, self.offline, self.file, self.generation = url, offline, file, generation
        self.strict, self.kernel_hash, self.folders = strict, kernel_hash, folders
        self.problems = problems

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str],
        *,
        url: str | None = None,
        file: str | None = None,
        generation: str | None = None,
        strict: bool | None = None,
        kernel_hash: str | None = None,
    ) -> ClientSettings:
        """What is given wins over the environment; strict: None leaves it to that."""
        problems = [*_misspelt(environment)]
        url = (url or environment.get(URL, "")).strip().rstrip("/") or None
        if url and not url.startswith(("http://", "https://")):
            problems.append(f"the URL of the service must begin with http://, unlike {url[:80]!a}.")
            url = None
        generation = (generation or environment.get(GENERATION, "")).strip().lower() or None
        return cls(
            url,
            _on(environment.get(OFFLINE, "")),
            file or environment.get(FILE) or None,
            generation,
            _on(environment.get(STRICT, "")) if strict is None else strict,
            kernel_hash or environment.get(KERNEL_HASH) or None,
            _folders(environment),
            tuple(problems),
        )


def _on(value: str) -> bool:
    return value.strip().lower() not in NO


def _folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The user's cache folder and, for where that cannot be written, one of the machine's own."""
    import os

    chosen = environment.get(CACHE_DIR) or environment.get("XDG_CACHE_HOME")
    if not chosen:
        # An empty HOME is none.
        home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  # slow to import
        chosen = os.path.join(home, ".cache")  # noqa: PTH118
    own = chosen if environment.get(CACHE_DIR) else os.path.join(chosen, "gemm-tuner")  # noqa: PTH118
    shared = f"/tmp/gemm-tuner-{os.geteuid()}"
    found = [os.path.join(folder, "client") for folder in (own, shared)]  # noqa: PTH118
    return tuple(folder for folder in found if folder.startswith("/"))


def _misspelt(environment: Mapping[str, str]) -> list[str]:
    unknown = [n for n in environment if n.startswith("TUNER_") and n not in OWN + OTHERS]
    if not unknown:
        return []
    from difflib import get_close_matches

    found = []
    for name in sorted(unknown):
        if like := get_close_matches(name, OWN, 1, LIKE):
            found.append(f"{name} is read by nothing; {like[0]} may be meant.")
    return found
