"""What a row must not claim, whoever tells it: times beyond physics, configs no card can run."""

from datetime import UTC, datetime, timedelta

from tuner.legality import variant_faults
from tuner.lookup.race import LONGEST_US, SHORTEST_US
from tuner.trial import Measurement, TrialState, shortest_us

FIRST_HOPPER = datetime(2022, 1, 1, tzinfo=UTC)
CLOCK_SLACK = timedelta(days=1)
"""How far a clock may be ahead of ours before its times are called impossible."""


def refusal(row: Measurement) -> str | None:
    """Why an `ok` row cannot be believed; None for one that can, and for every failure."""
    if row.state is not TrialState.OK:
        return None
    if reason := impossible_time(row):
        return reason
    config = row.contender.config
    if config is not None and (fault := next(variant_faults(config.variant), None)):
        return f"no sm_90 device can have run this config: {fault}"
    return None


def impossible_time(row: Measurement) -> str | None:
    """Why the samples of an `ok` row are no times of this problem on such a device."""
    floor_us = shortest_us(row.problem, row.contender, row.device_key)
    for sample in row.samples_us:
        if not SHORTEST_US <= sample <= LONGEST_US:
            return f"no product takes {sample:g} us."
    if row.median_us is not None and row.median_us < floor_us:
        return (
            f"{row.median_us:g} us is faster than the device can compute {row.problem.shape}: that "
            f"takes {floor_us:.3g} us at least."
        )
    return None


def impossible_moment(at: datetime, now: datetime) -> bool:
    """Before there was a Hopper card, or in the future by more than clocks differ."""
    return not FIRST_HOPPER <= at <= now + CLOCK_SLACK
