"""Cross races of one layer, built by hand."""

from collections.abc import Mapping
from typing import Any

from tests.lookup.measured import H200, NARROW, PINGPONG, SQUARE, launched, problem
from tests.store.examples import CUBLAS, race
from tuner.config import KernelConfig
from tuner.lookup import Race
from tuner.lookup.cross_races import Span, cross_race_id
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender

N, K = 3584, 4096
KEY = problem(1, N, K)
WHOLE = Span(1, 4096)
SMALL = launched(NARROW, problem(16, N, K))
LARGE = launched(PINGPONG, problem(1024, N, K))
WIDE = launched(SQUARE, problem(1024, N, K))
LIBRARY_US = 100.0


def crossed(
    m: int, times_us: Mapping[KernelConfig, float], span: Span = WHOLE, **changes: Any
) -> list[Race]:
    """A hot and a cool cross race at one M."""
    rounds = {Contender("kernel", config): [us] * 9 for config, us in times_us.items()}
    rounds[CUBLAS] = [LIBRARY_US] * 9
    made = []
    for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
        name = cross_race_id(span, f"{m}{protocol}")
        rows = race(name, rounds, protocol, problem=problem(m, N, K), device_key=H200, **changes)
        made.append(Race(name, protocol, tuple(rows)))
    return made
