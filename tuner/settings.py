"""Settings, built once at the edge from the environment; everything else takes arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are kept.

    database_url: TUNER_DATABASE_URL, default a SQLite file in the user's data directory.
    cache_dir: TUNER_CACHE_DIR, default the user's cache directory; holds cubins.
    api_token: TUNER_API_TOKEN; `POST /runs` asks for it, and takes nothing where it is None.
    rate_limit: TUNER_RATE_LIMIT, for the service's slower routes; None leaves its default.
    kernel_hash: TUNER_KERNEL_HASH, the kernel that answers are judged by; None: the installed one.
    """

    database_url: str
    cache_dir: Path
    api_token: str | None = None
    rate_limit: str | None = None
    kernel_hash: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Read the environment once; makes no folder and opens nothing."""
        from platformdirs import user_cache_path, user_data_path

        data = user_data_path("gemm-tuner", appauthor=False)
        cache = environment.get("TUNER_CACHE_DIR")
        return cls(
            database_url=environment.get("TUNER_DATABASE_URL") or f"sqlite:///{data / 'tuner.db'}",
            cache_dir=Path(cache) if cache else user_cache_path("gemm-tuner", appauthor=False),
            api_token=environment.get("TUNER_API_TOKEN") or None,
            rate_limit=environment.get("TUNER_RATE_LIMIT") or None,
            kernel_hash=environment.get("TUNER_KERNEL_HASH") or None,
        )
