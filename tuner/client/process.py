"""What a whole process shares: configs are loaded once for each way they are asked for."""

from __future__ import annotations

import os
from _thread import allocate_lock

from tuner.client.configs import TunedConfigs
from tuner.client.settings import ClientSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Unpack

    from tuner.client.best import BestConfig, Shape
    from tuner.client.configs import Extents, Terms


class Process:
    """Loads once, whichever thread asks first, and whichever process after a fork."""

    def __init__(self) -> None:
        self._loaded: dict[object, TunedConfigs] = {}
        # One for each process: another thread may have held it when this one was forked.
        self._locks = {os.getpid(): allocate_lock()}

    def configs(self, device: str | None, **chosen: Any) -> TunedConfigs:
        """Raises: NoTunedConfig in strict mode, as `load`."""
        asked = (device, *chosen.items())
        found = self._loaded.get(asked)
        if found is None:
            with self._locks.setdefault(os.getpid(), allocate_lock()):
                found = self._loaded.get(asked)
                if found is None:
                    found = self._loaded[asked] = _loaded(device, **chosen)
        return found


def load(
    device: str | None = None,
    *,
    url: str | None = None,
    file: str | None = None,
    generation: str | None = None,
    strict: bool | None = None,
    kernel_hash: str | None = None,
) -> TunedConfigs:
    """All configs of a device, from the first source that has them; once for each process.

    device: its key, such as `sm90-132sm-141gb`; None: the only one that the source has.
    url, file, generation, strict, kernel_hash: instead of what the environment says of them.
    Raises: NoTunedConfig in strict mode, if the source that was chosen cannot be used.
    """
    return _PROCESS.configs(
        device, url=url, file=file, generation=generation, strict=strict, kernel_hash=kernel_hash
    )


def best_config(
    m: int, n: int, k: int, *, device: str | None = None, **asked: Unpack[Terms]
) -> BestConfig:
    """As `load(device).best_config(m, n, k, ...)`."""
    return load(device).best_config(m, n, k, **asked)


def best_configs(
    shapes: Iterable[Shape | Extents], *, device: str | None = None, **asked: Unpack[Terms]
) -> Iterator[BestConfig]:
    """As `load(device).best_configs(shapes, ...)`: answers, then one warning."""
    return load(device).best_configs(shapes, **asked)


def _loaded(device: str | None, **chosen: Any) -> TunedConfigs:
    from tuner.client.sources import find_source

    settings = ClientSettings.from_environment(os.environ, **chosen)
    found = find_source(settings, device)
    if settings.strict and found.problems:
        from tuner.errors import NoTunedConfig

        raise NoTunedConfig(" ".join(found.problems))
    configs = TunedConfigs(found, device, strict=settings.strict, kernel_hash=settings.kernel_hash)
    configs.report_at_exit()
    return configs


_PROCESS = Process()
