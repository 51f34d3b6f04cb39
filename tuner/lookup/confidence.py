"""How sure an answer is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Regret:
    """How much slower than the best an answer is expected to be: 0.03 is 3 %.

    cases: left-out shapes that say so; 0 where none could, and the numbers are a tier's that is
        expected to be worse.
    """

    mean: float
    p95: float
    cases: int

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "p95": self.p95, "cases": self.cases}


@dataclass(frozen=True, slots=True)
class Confidence:
    """samples: times of this very shape and config; 0 where none was taken.

    ci95_us: 95 % interval of the median of `samples`, or, without them, of the time predicted
        under the protocol asked for (hot if none was); None where there is no prediction.
    expected_regret: None for a measured answer.
    distance: doublings to the tuned shape that the answer comes from; None if it comes from none.
    """

    samples: int
    ci95_us: tuple[float, float] | None
    expected_regret: Regret | None
    distance: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "ci95_us": list(self.ci95_us) if self.ci95_us else None,
            "expected_regret": self.expected_regret.to_json() if self.expected_regret else None,
            "distance": self.distance,
        }
