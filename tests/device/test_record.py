"""What a recorder leaves: each config's one screening, and races that any subset can replay."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

from benchmarks.record import record
from tests.device.fake import H200, TOOLCHAIN, FakeCompiler, FakeDevice, Faults
from tuner.compiler.pool import CompilePool
from tuner.config import KernelVariant
from tuner.device.origin import Origin
from tuner.device.protocol import Entrant
from tuner.device.replay import Recording, ReplayDevice
from tuner.errors import DeviceCrashed
from tuner.search.space import sample, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    CompileFailure,
    Contender,
    Cubin,
    Measurement,
    Sampled,
    TrialState,
)

PROBLEM = Problem(GemmShape(512, 512, 512), 132)
REFUSED, WRONG, BREAKING, *SOUND = sample(PROBLEM, 7, seed=1)
ORIGIN = Origin(PROBLEM, H200, TOOLCHAIN)


class Pool(FakeCompiler):
    """Refuses one variant."""

    def __init__(self) -> None:
        refused = TrialState.COMPILE_REFUSED
        super().__init__(lambda v: refused if v == REFUSED.variant else None)

    def compile(self, variants: list[KernelVariant]) -> dict[KernelVariant, Cubin | CompileFailure]:
        futures: dict[KernelVariant, Future[Cubin | CompileFailure]] = {
            v: self.submit(v) for v in variants
        }
        return {v: future.result() for v, future in futures.items()}


class Device(FakeDevice):
    """One config works alone until it was raced, then breaks whatever it is in."""

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        if any(e.contender.config == BREAKING for e in entrants):
            self.faults = Faults(wrong=self.faults.wrong, sticky=frozenset({BREAKING.variant}))
            raise DeviceCrashed("the race broke the context.")
        return super().race(entrants, protocol, rounds)


def recorded() -> list[Measurement]:
    device = Device(Faults(wrong=frozenset({WRONG.variant})))
    configs = [REFUSED, WRONG, BREAKING, *SOUND]
    return record(
        ORIGIN, configs, device, cast(CompilePool, Pool()), {PROTOCOL_HOT: 5, PROTOCOL_COOL: 3}
    )


def test_every_config_has_one_row_outside_the_races_that_says_how_it_ended() -> None:
    rows = [row for row in recorded() if row.race is None]
    assert {row.protocol for row in rows} == {PROTOCOL_SCREEN}
    assert [(row.contender.config, row.state) for row in rows] == [
        (REFUSED, TrialState.COMPILE_REFUSED),
        (WRONG, TrialState.WRONG_RESULT),
        (BREAKING, TrialState.CRASHED),
        *((config, TrialState.OK) for config in SOUND),
    ]


def test_both_races_hold_what_is_sound_and_the_libraries_in_the_same_rounds() -> None:
    rows = recorded()
    for protocol, rounds in ((PROTOCOL_HOT, 5), (PROTOCOL_COOL, 3)):
        raced = [row for row in rows if row.protocol == protocol]
        assert {row.contender.config for row in raced} == {None, *SOUND}
        assert {len(row.samples_us) for row in raced} == {rounds}
        assert len({row.race for row in raced}) == 1
        assert {row.contender.name for row in raced} == {"kernel", "cublas", "cublaslt"}
        assert all(round(us, 4) == us for row in raced for us in row.samples_us)


def test_what_was_recorded_can_be_replayed_whole() -> None:
    device = ReplayDevice(Recording("new", H200, recorded()))
    assert set(device.recorded_configs(PROBLEM)) == {REFUSED, WRONG, BREAKING, *SOUND}
    device.prepare(PROBLEM, Entrant(Contender("kernel", trusted_config(PROBLEM))))
    breaking = Entrant(Contender("kernel", BREAKING))
    assert device.verify(breaking).state is TrialState.CRASHED
