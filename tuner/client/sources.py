"""Where configs come from: the first source that has them, in the order of docs/client.md."""

from __future__ import annotations

import os
from time import monotonic, time

from tuner.client.cache import Cache, is_id
from tuner.client.told import MOST_BYTES, Told, Unreadable, id_of, unpacked
from tuner.device_key import key_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.client.best import Source
    from tuner.client.cache import Asked
    from tuner.client.refresh import Refreshed
    from tuner.client.settings import ClientSettings

PATIENCE_S = 0.5
"""For a server, all in all; what is left of a second is for a slow machine."""
FRESH_S = 60.0
"""How long what the server said speaks for every process of the machine."""
SHUNNED_S = 30.0
"""How long a server that gave nothing is not asked again."""
SHIPPED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "snapshots")  # noqa: PTH118, PTH120
ENDING = ".json.gz"
"""Of a file in SHIPPED, after the key of the device, a dot, and the id of the generation."""


class Loaded:
    """What was found. told: of the device; None if no source has it.

    lenders: snapshots of other devices, to borrow from where there is none of this one.
    problems: why better sources were passed over, as sentences.
    """

    __slots__ = ("_id", "cache", "lenders", "problems", "source", "told")

    def __init__(
        self,
        told: Told | None,
        source: Source,
        problems: Sequence[str],
        cache: Cache,
        id: str | None = None,
        lenders: Sequence[Told] = (),
    ) -> None:
        self.told, self.source, self.problems, self.cache = told, source, tuple(problems), cache
        self.lenders = tuple(lenders)
        self._id = id

    @property
    def id(self) -> str | None:
        """Of the snapshot; worked out when it is first asked for."""
        if self._id is None and self.told is not None:
            self._id = id_of(self.told.body)
        return self._id


def find_source(
    settings: ClientSettings, device: str | None, patience_s: float = PATIENCE_S
) -> Loaded:
    """The first source with a snapshot of `device`, or of the only one that the source has."""
    cache = Cache(settings.folders)
    problems = list(settings.problems)
    if settings.file:
        told = _of_file(settings.file, device, problems)
        if told is not None:
            return Loaded(told, "file", problems, cache)
    if settings.generation:
        # Others may have it, so nothing but what is the same on every machine takes its place.
        return _pinned(settings, device, cache, problems, patience_s) or _shipped(
            device, cache, problems
        )
    if settings.url and (found := _served(settings, device, cache, problems, patience_s)):
        return found
    return _shipped(device, cache, problems)


def _of_file(path: str, device: str | None, problems: list[str]) -> Told | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            told = Told(unpacked(file.read(MOST_BYTES)), checked=False)
    except OSError as error:
        problems.append(f"the file {path} cannot be read ({error.strerror}).")
    except Unreadable as error:
        problems.append(f"the file {path} is of no use: {error}")
    else:
        if device in (None, told.device_key):
            return told
        problems.append(f"the file {path} is of {told.device_key[:40]!a}, not of {device!a}.")
    return None


def _pinned(
    settings: ClientSettings,
    device: str | None,
    cache: Cache,
    problems: list[str],
    patience_s: float,
) -> Loaded | None:
    id = settings.generation or ""
    if not is_id(id):
        problems.append(f"a generation is pinned by the 64 digits of its id, not by {id[:80]!a}.")
        return None
    told = cache.snapshot(id) or shipped().get(id)
    if told is None and settings.url and not settings.offline:
        told = _asked(settings.url, device, id, cache, problems, patience_s).told
    if told is None:
        problems.append(f"the generation {id[:16]} was not found.")
    elif device not in (None, told.device_key):
        problems.append(f"the generation {id[:16]} is of {told.device_key[:40]!a}.")
    else:
        return Loaded(told, "pinned", problems, cache, id)
    return None


def _served(
    settings: ClientSettings,
    device: str | None,
    cache: Cache,
    problems: list[str],
    patience_s: float,
) -> Loaded | None:
    url = settings.url or ""
    before = cache.asked(url, device)
    last = cache.snapshot(before.id) if before and before.id else None
    if before and last and not before.problem and _recent(before):
        return Loaded(last, "server", problems, cache, before.id)
    if settings.offline:
        pass  # as it was chosen
    elif before and before.problem and _recent(before):
        problems.append(before.problem)
    else:
        answered = _asked(url, device, None, cache, problems, patience_s)
        if answered.told is not None:
            return Loaded(answered.told, "server", problems, cache, answered.id)
    if last and before:
        return Loaded(last, "cache", problems, cache, before.id)
    return None


def _recent(asked: Asked | None) -> bool:
    if asked is None:
        return False
    return 0 <= time() - asked.at < (SHUNNED_S if asked.problem else FRESH_S)


def _asked(
    url: str,
    device: str | None,
    pinned: str | None,
    cache: Cache,
    problems: list[str],
    patience_s: float,
) -> Refreshed:
    from tuner.client.refresh import Question, refresh

    until = monotonic() + patience_s
    answered = refresh(Question(url, device, pinned), cache, _recent, until)
    if answered.problem:
        problems.append(answered.problem)
    return answered


def _shipped(device: str | None, cache: Cache, problems: list[str]) -> Loaded:
    found = shipped()
    fitting = [(id, told) for id, told in found.items() if device in (None, told.device_key)]
    if len(fitting) == 1:
        id, told = fitting[0]
        return Loaded(told, "shipped", problems, cache, id)
    keys = ", ".join(told.device_key for told in found.values()) or "none"
    if device is None:
        problems.append(f"no device is named, and the package ships configs of {keys}.")
    elif key_parts(device) is None:
        problems.append(
            f"{device[:80]!a} is no key of a device; the package ships those of {keys}."
        )
    else:
        problems.append(f"nothing is published for {device}; the package ships configs of {keys}.")
    return Loaded(None, "shipped", problems, cache, lenders=list(found.values()))


def shipped() -> dict[str, Told]:
    """By id the snapshots in the package, which were checked when they were put there."""
    found = {}
    try:
        for name in sorted(os.listdir(SHIPPED)):  # noqa: PTH208
            _, _, id = name.removesuffix(ENDING).partition(".")
            if name.endswith(ENDING) and is_id(id):
                with open(os.path.join(SHIPPED, name), "rb") as file:  # noqa: PTH118, PTH123
                    found[id] = Told(unpacked(file.read()), checked=True)
    except (OSError, Unreadable):
        pass  # an installation without them has none
    return found
