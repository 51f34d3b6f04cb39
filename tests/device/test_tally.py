"""What a run says of its device: how busy it was, and which rounds were left out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.device.fake import FakeDevice
from tests.study.cases import PROBLEM, SMALL, tools
from tuner.device.protocol import Entrant
from tuner.device.tally import TalliedDevice, Usage
from tuner.device.throttling import (
    LOWEST_CLOCK_RATIO,
    MOST_REJECTED,
    POWER_BRAKE,
    Look,
    described,
    rejected,
    without,
)
from tuner.errors import DeviceCrashed
from tuner.search.space import trusted_config
from tuner.study import tune
from tuner.trial import PROTOCOL_HOT, Contender, Sampled

POWER_CAP = 0x4
TRUSTED = Entrant(Contender("kernel", trusted_config(PROBLEM)))


class Clock:
    """Goes on only while a device works: a second a call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Working(FakeDevice):
    """Proves in one second, screens in two, races in three; one round of a race is rejected."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def prepare(self, problem, trusted):  # type: ignore[no-untyped-def]
        self.clock.now += 10
        return super().prepare(problem, trusted)

    def verify(self, entrant: Entrant) -> Sampled:
        self.clock.now += 1
        return super().verify(entrant)

    def screen(self, entrant: Entrant) -> Sampled:
        self.clock.now += 2
        return super().screen(entrant)

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        self.clock.now += 3
        raced = super().race(entrants, protocol, rounds)
        return [replace(o, samples_us=o.samples_us[1:], rejected_rounds=1) for o in raced]


def test_only_proving_and_measuring_is_busy() -> None:
    clock = Clock()
    device = TalliedDevice(Working(clock), clock)
    tune(PROBLEM, tools(device), SMALL)
    clock.now += 5
    used = device.usage()
    assert used.verify_seconds == 24 * 1
    assert used.screened == 24
    assert used.measure_seconds == 24 * 2 + 3 * used.races
    assert used.wall_seconds == 10 + 24 + 48 + 3 * used.races + 5
    assert used.busy == pytest.approx((used.wall_seconds - 15) / used.wall_seconds)
    assert used.rejected_rounds == used.races
    assert used.raced == SMALL.finalists + 3  # three of them as dependent launches too


def test_a_call_that_fails_counts_its_time_and_nothing_else() -> None:
    clock = Clock()

    class Breaking(Working):
        def race(self, entrants, protocol, rounds):  # type: ignore[no-untyped-def]
            super().race(entrants, protocol, rounds)
            raise DeviceCrashed("CUDA reported an illegal address.")

    device = TalliedDevice(Breaking(clock), clock)
    device.prepare(PROBLEM, TRUSTED)
    with pytest.raises(DeviceCrashed):
        device.race([TRUSTED], PROTOCOL_HOT, 5)
    assert device.usage() == Usage(measure_seconds=3, wall_seconds=13)


def test_a_device_that_was_not_used_is_not_busy() -> None:
    assert Usage().busy == 0


def test_slowed_rounds_are_left_out_for_every_contender_and_told_of() -> None:
    calm = Look(1500, POWER_CAP)
    looks = [calm, Look(1500, POWER_CAP | POWER_BRAKE), calm, Look(1200, POWER_CAP), calm]
    assert rejected(looks) == {1, 3}
    assert without([1.0, 2.0, 3.0, 4.0, 5.0], rejected(looks)) == [1.0, 3.0, 5.0]
    assert described(rejected(looks), 5) == (
        "2 of 5 rounds were left out: the card was slowed down in them."
    )
    assert described(frozenset(), 5) == ""


def test_the_power_cap_of_a_hot_race_rejects_nothing() -> None:
    assert rejected([Look(1400 + i, POWER_CAP) for i in range(9)]) == frozenset()


def test_a_card_that_tells_nothing_or_is_slow_throughout_keeps_all_rounds() -> None:
    assert rejected([Look()] * 5) == frozenset()
    assert rejected([Look(900, POWER_BRAKE)] * 5) == frozenset()
    assert rejected([]) == frozenset()


looks = st.builds(
    Look,
    st.none() | st.integers(200, 2000),
    st.none() | st.sampled_from([0, POWER_CAP, POWER_BRAKE, 0x40]),
)


@given(st.lists(looks, max_size=30))
def test_at_most_half_of_the_rounds_are_left_out_and_fast_calm_ones_never(
    found: list[Look],
) -> None:
    left_out = rejected(found)
    assert len(left_out) <= MOST_REJECTED * len(found)
    clocks = [look.sm_clock_mhz for look in found if look.sm_clock_mhz]
    for index in left_out:
        look = found[index]
        slow = (look.sm_clock_mhz or max(clocks, default=1)) < max(clocks, default=1)
        assert slow or look.throttle_reasons in (POWER_BRAKE, 0x40)
    assert LOWEST_CLOCK_RATIO < 1
