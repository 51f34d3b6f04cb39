"""Makes a small recording with the fake device, laid out as a recorder lays one out."""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.device.fake import H200, TOOLCHAIN, FakeDevice
from tuner.config import KernelConfig
from tuner.device.protocol import Entrant
from tuner.hardware import DeviceIdentity
from tuner.lookup.layer import at_m
from tuner.search.space import sample, trusted_config
from tuner.shape import Problem
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Contender,
    Measurement,
    Sampled,
    TrialState,
)
from tuner.trial_json import write_lines


def recorded_rows(
    problem: Problem, count: int = 12, rounds: int = 7, dependent: int = 0
) -> list[Measurement]:
    """`count` working configs of `problem`, one that does not compile and one that is wrong.

    dependent: how many of the working ones were recorded as dependent launches as well.
    """
    device = FakeDevice()
    configs = sample(problem, count + 2, seed=1)
    refused, wrong, *working = configs
    working += [
        replace(c, knobs=replace(c.knobs, dependent_launch=True)) for c in working[:dependent]
    ]
    device.prepare(problem, Entrant(Contender("kernel", trusted_config(problem))))
    rows = [
        _row(problem, Sampled(_kernel(refused), TrialState.COMPILE_REFUSED, detail="spills 8 B")),
        _row(problem, Sampled(_kernel(wrong), TrialState.WRONG_RESULT, detail="error 3")),
        *(_row(problem, device.screen(Entrant(_kernel(c)))) for c in working),
    ]
    for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
        rows += _race(device, problem, working, protocol, rounds)
    return rows


def recorded_layer(
    key: Problem, ms: Iterable[int], configs: Sequence[KernelConfig], rounds: int = 5
) -> list[Measurement]:
    """The same configs at every M of a layer, all right, beside a cuBLAS that is slow."""
    rows = []
    for problem in (at_m(key, m) for m in ms):
        device = FakeDevice()
        device.prepare(problem, Entrant(_kernel(trusted_config(problem))))
        rows += [_row(problem, device.screen(Entrant(_kernel(c)))) for c in configs]
        for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
            rows += [_slower(r) for r in _race(device, problem, configs, protocol, rounds)]
    return rows


def _slower(row: Measurement) -> Measurement:
    """The same; a library takes ten times as long."""
    if row.contender.config is not None:
        return row
    return replace(row, samples_us=tuple(10 * us for us in row.samples_us))


def write_recording(path: Path, rows: Sequence[Measurement], device: DeviceIdentity = H200) -> Path:
    path.write_bytes(gzip.compress("".join(write_lines(device, rows)).encode()))
    return path


def _race(
    device: FakeDevice,
    problem: Problem,
    configs: Sequence[KernelConfig],
    protocol: str,
    rounds: int,
) -> list[Measurement]:
    entrants = [
        *(Entrant(_kernel(c)) for c in configs),
        Entrant(Contender("cublas")),
        Entrant(Contender("cublaslt")),
    ]
    sampled = device.race(entrants, protocol, rounds)
    return [_row(problem, s, protocol, f"recorded-{protocol}") for s in sampled]


def _kernel(config: KernelConfig) -> Contender:
    return Contender("kernel", config)


def _row(
    problem: Problem, sampled: Sampled, protocol: str = PROTOCOL_SCREEN, race: str | None = None
) -> Measurement:
    return Measurement(
        problem,
        H200.key,
        H200.name,
        protocol,
        sampled.contender,
        TOOLCHAIN,
        sampled.state,
        sampled.samples_us,
        sampled.detail,
        sampled.conditions,
        race=race,
    )
