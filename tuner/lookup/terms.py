"""What an answer may be asked to keep to, beside its problem."""

from dataclasses import dataclass

from tuner.config import KernelConfig
from tuner.entry import label_of
from tuner.lookup.numerics import Numerics, numerics_of
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender


@dataclass(frozen=True, slots=True)
class Terms:
    """protocol: rank by one; None for hot and cool together.

    plain: no dependent launch. invariant: the bits of a row do not depend on M.
    """

    protocol: str | None = None
    plain: bool = False
    invariant: bool = False

    @property
    def label(self) -> str:
        """Names the terms in a snapshot; empty where nothing particular is asked for."""
        return label_of(self.protocol, self.plain, self.invariant)

    @classmethod
    def of_label(cls, label: str) -> "Terms":
        """The terms of a label. Words that this version does not know name a protocol."""
        words = label.split(" ")
        rest = [word for word in words if word not in ("plain", "invariant")]
        return cls(" ".join(rest) or None, "plain" in words, "invariant" in words)

    @property
    def numerics(self) -> Numerics | None:
        return "invariant" if self.invariant else None

    def admit(self, config: KernelConfig) -> bool:
        """Whether a config may answer, whatever its speed."""
        if self.plain and config.knobs.dependent_launch:
            return False
        return not self.invariant or numerics_of(Contender("kernel", config)) == "invariant"


ALL_TERMS = tuple(
    Terms(protocol, plain, invariant)
    for protocol in (None, PROTOCOL_HOT, PROTOCOL_COOL)
    for plain in (False, True)
    for invariant in (False, True)
)
"""Everything that can be asked for."""
