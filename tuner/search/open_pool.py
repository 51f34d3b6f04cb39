"""Which configs of a pool may still be proposed."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.config import KernelConfig, KernelVariant


class OpenPool:
    """Configs by position, in the order given, each once; `left` says which are neither taken nor
    of a banned variant."""

    def __init__(
        self, configs: Sequence[KernelConfig], banned: Collection[KernelVariant] = ()
    ) -> None:
        self.configs = list(dict.fromkeys(configs))
        self.left: NDArray[np.bool_] = np.ones(len(self.configs), dtype=bool)
        self._position = {config: i for i, config in enumerate(self.configs)}
        self._of_variant: dict[KernelVariant, list[int]] = {}
        for position, config in enumerate(self.configs):
            self._of_variant.setdefault(config.variant, []).append(position)
        for variant in banned:
            self.ban(variant)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.left))

    def __contains__(self, config: KernelConfig) -> bool:
        position = self._position.get(config)
        return position is not None and bool(self.left[position])

    def take(self, config: KernelConfig) -> None:
        if (position := self._position.get(config)) is not None:
            self.left[position] = False

    def ban(self, variant: KernelVariant) -> None:
        self.left[self._of_variant.get(variant, [])] = False
