"""What a look-up returns; made without dataclasses, which take longer to import than all of it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    Source = Literal["file", "pinned", "server", "cache", "shipped", "default"]
    Tier = Literal["exact", "layer", "nearest", "sibling", "model", "none"]
    Use = Literal["kernel", "cublas", "cublaslt"]
    Shape = tuple[int, int, int]

NONE = "none"
"""The tier of an answer that no rule gives: the caller's default."""
TUNED = ("exact", "layer")
"""Tiers of shapes that tuning would tell nothing new about."""
SETTABLE = ("shape", "config", "use", "tier", "source", "generation", "reason", "answer")


class BestConfig:
    """The config to use for one shape, and where it comes from.

    It cannot be changed, and what it holds is shared by all who ask for the same.

    shape: M, N and K as they were asked for.
    config: the fields of `tuner.config.KernelConfig` by name, or the caller's default, which may be
        None.
    use: `kernel`, or the library that is faster or, with nothing to go by, the safer choice.
    tier: how it was found, as `GET /best-config` has it; `none` for the caller's default.
    source: `file`, `pinned`, `server`, `cache` (what the server served last), `shipped` with the
        package, or `default`.
    generation: the id of the snapshot; None for the default.
    reason: why there is only the default; else empty.
    answer: all that is known, the body of `GET /best-config`; None for the default.
    """

    __slots__ = SETTABLE

    if TYPE_CHECKING:
        shape: Shape
        config: Mapping[str, Any] | None
        use: Use
        tier: Tier
        source: Source
        generation: str | None
        reason: str
        answer: Mapping[str, Any] | None

    def __init__(
        self,
        shape: Shape,
        config: Mapping[str, Any] | None,
        use: Use,
        tier: Tier,
        source: Source,
        generation: str | None = None,
        reason: str = "",
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        values = (shape, config, use, tier, source, generation, reason, answer)
        for name, value in zip(SETTABLE, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: an answer does not change.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be removed: an answer does not change.")

    @property
    def stale(self) -> bool:
        """Tuned for another kernel, or with an older compiler, than the one that was named."""
        return bool(self.answer and self.answer["stale"])

    @property
    def speedup(self) -> float | None:
        """cuBLAS's time over the kernel's, where the shape was measured."""
        return self.answer["speedup"] if self.answer else None

    def __reduce__(self) -> tuple[type[BestConfig], tuple[Any, ...]]:
        return BestConfig, tuple(getattr(self, name) for name in SETTABLE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BestConfig):
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    __hash__ = None  # type: ignore[assignment]  # it holds dictionaries

    def __repr__(self) -> str:
        m, n, k = self.shape
        return f"<BestConfig {m}x{n}x{k}: {self.use}, tier {self.tier}, source {self.source}>"
