"""Rows to store, built by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.shape import GemmShape, Problem
from tuner.trial import (
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Conditions,
    Contender,
    Measurement,
    ShapeOutcome,
    ShapeState,
    Toolchain,
    TrialState,
)

DEVICE_KEY = "sm90-132sm-141gb"
PROBLEM = Problem(GemmShape(4096, 2112, 72), 132)
TOOLCHAIN = Toolchain("5eed", "13.0.88")
NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
CUBLAS = Contender("cublas")
CUBLASLT = Contender("cublaslt", algorithm="tile=20 stages=35")


def config(block_n: int = 128, group: int = 8) -> KernelConfig:
    return KernelConfig(KernelVariant(128, block_n, 4), LaunchKnobs(num_sms=132, group=group))


def kernel(block_n: int = 128, group: int = 8) -> Contender:
    return Contender("kernel", config(block_n, group))


def dependent(block_n: int = 128) -> Contender:
    """The same launched dependently."""
    plain = config(block_n)
    knobs = replace(plain.knobs, dependent_launch=True)
    return Contender("kernel", replace(plain, knobs=knobs))


def splitting(block_n: int = 128) -> Contender:
    """A kernel whose thread blocks share out K."""
    plain = config(block_n)
    variant = replace(plain.variant, reduction="workspace")
    return Contender("kernel", KernelConfig(variant, replace(plain.knobs, split_k=2)))


def measurement(**changes: Any) -> Measurement:
    """A successful screening of one config."""
    row = Measurement(
        problem=PROBLEM,
        device_key=DEVICE_KEY,
        device_name="NVIDIA H200",
        protocol=PROTOCOL_SCREEN,
        contender=kernel(),
        toolchain=TOOLCHAIN,
        state=TrialState.OK,
        samples_us=(166.5, 165.25, 167.0),
        conditions=Conditions(driver="580.95", cublas_version="13.1.0.3"),
        measured_at=NOON,
    )
    return replace(row, **changes)


def race(
    name: str,
    times_us: Mapping[Contender, Sequence[float]],
    protocol: str = PROTOCOL_HOT,
    **changes: Any,
) -> list[Measurement]:
    """One race: the samples of every contender, round by round."""
    return [
        measurement(
            race=name, protocol=protocol, contender=contender, samples_us=tuple(samples), **changes
        )
        for contender, samples in times_us.items()
    ]


def outcome(**changes: Any) -> ShapeOutcome:
    ended = ShapeOutcome(
        problem=PROBLEM,
        device_key=DEVICE_KEY,
        device_name="NVIDIA H200",
        toolchain=TOOLCHAIN,
        state=ShapeState.TUNED,
        detail="",
        counts={"ok": 40, "compile_refused": 3},
        trials=43,
        compiled=12,
        seconds=21.5,
        verify_seconds=2.25,
        measure_seconds=14.125,
        run_id="run-1",
        finished_at=NOON + timedelta(minutes=1),
    )
    return replace(ended, **changes)
