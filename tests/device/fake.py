"""A device without a GPU, whose candidates can be told to fail in every way a kernel can.

It lives in tests only. Times come from the analytic model and a fixed deviation per config, so a
search has something to find; every fault is keyed by variant, so it can be planted in one.
"""

import math
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from tuner.config import KernelConfig, KernelVariant
from tuner.device.protocol import Entrant, Prepared
from tuner.errors import DeviceCrashed, DeviceError, DoesNotFit
from tuner.hardware import DeviceIdentity
from tuner.lookup.cost_model import estimate_us
from tuner.shape import Problem
from tuner.trial import (
    PROTOCOL_COOL,
    CompileFailure,
    Conditions,
    Contender,
    Cubin,
    Sampled,
    Toolchain,
    TrialState,
)

H200 = DeviceIdentity(
    "NVIDIA H200", (9, 0), 132, 143_771 * 2**20, "GPU-fake", "580.95", "13.1.0.3", 60 * 2**20
)
TOOLCHAIN = Toolchain("kernel-hash-1", "13.0.88")


@dataclass(frozen=True)
class Faults:
    """What goes wrong, by variant. `killed` names files that exist once a killer has struck."""

    hang: frozenset[KernelVariant] = frozenset()
    segfault: frozenset[KernelVariant] = frozenset()
    sticky: frozenset[KernelVariant] = frozenset()
    wrong: frozenset[KernelVariant] = frozenset()
    raises: frozenset[KernelVariant] = frozenset()
    out_of_memory: frozenset[KernelVariant] = frozenset()
    nan: frozenset[KernelVariant] = frozenset()
    too_fast: frozenset[KernelVariant] = frozenset()
    slow: frozenset[KernelVariant] = frozenset()
    hang_in_race: frozenset[KernelVariant] = frozenset()
    slow_s: float = 1.0
    all_nan: bool = False
    all_wrong: bool = False
    disagrees: bool = False
    memory_bytes: int = 2**62
    outside_kill: Mapping[KernelVariant, Path] = field(default_factory=dict)


def true_us(problem: Problem, config: KernelConfig) -> float:
    """The time this device takes: the model's, off by a fixed amount per variant and launch."""
    v, k = config.variant, config.knobs
    tile = (v.block_m, v.block_n, v.schedule, v.split, v.transposed_store)
    off = random.Random(f"tile {tile}").gauss(0, 0.10)
    off += random.Random(f"variant {v}").gauss(0, 0.03)
    off += random.Random(f"knobs {k}").gauss(0, 0.01)
    return estimate_us(problem, config) * math.exp(abs(off))


class FakeDevice:
    """Implements `Device` in memory. `calls` records what was asked."""

    def __init__(self, faults: Faults | None = None, identity: DeviceIdentity = H200) -> None:
        self.faults = faults or Faults()
        self.calls: list[tuple[str, object]] = []
        self._identity = identity
        self._problem: Problem | None = None

    def identify(self) -> DeviceIdentity:
        return self._identity

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        assert trusted.contender.config is not None
        self.calls.append(("prepare", problem))
        need = problem.shape.operand_bytes
        if need > self.faults.memory_bytes:
            raise DoesNotFit(f"{problem.shape} does not fit: it needs {need} bytes.")
        if self.faults.disagrees:
            raise DeviceError("the trusted config and the reference disagree.")
        self._problem = problem
        return Prepared(3, 0.1)

    def verify(self, entrant: Entrant) -> Sampled:
        config = self._ready(entrant)
        self.calls.append(("verify", config))
        faults, v = self.faults, config.variant
        if marker := faults.outside_kill.get(v):
            _kill_once(marker)
        if v in faults.hang:
            time.sleep(3600)
        if v in faults.segfault:
            os.kill(os.getpid(), signal.SIGSEGV)
        if v in faults.sticky:
            raise DeviceCrashed("CUDA reported an illegal address.")
        if v in faults.raises:
            raise KeyError("launcher lost its table")
        if v in faults.out_of_memory:
            raise MemoryError("8 GiB wanted")
        if v in faults.wrong or faults.all_wrong:
            return Sampled(entrant.contender, TrialState.WRONG_RESULT, detail="error 7.5")
        return Sampled(entrant.contender, TrialState.OK)

    def screen(self, entrant: Entrant) -> Sampled:
        config = self._ready(entrant)
        self.calls.append(("screen", config))
        if config.variant in self.faults.slow:
            time.sleep(self.faults.slow_s)
        return self._timed(entrant.contender, 3)

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        self.calls.append(("race", protocol))
        for entrant in entrants:
            config = entrant.contender.config
            if config and config.variant in self.faults.hang_in_race:
                raise DeviceCrashed("the race broke the context.")
        return [self._timed(_named(e.contender, protocol), rounds) for e in entrants]

    def close(self) -> None:
        self.calls.append(("close", None))

    def _timed(self, contender: Contender, samples: int) -> Sampled:
        assert self._problem is not None
        config = contender.config
        if config is None:
            us = 2 + self._problem.shape.flops / (self._problem.sms * 4096 * 1400.0)
        elif config.variant in self.faults.nan or self.faults.all_nan:
            us = math.nan
        elif config.variant in self.faults.too_fast:
            us = 1e-3
        else:
            us = true_us(self._problem, config)
        noise = random.Random(f"{contender} {samples}")
        times = tuple(us * math.exp(noise.gauss(0, 0.003)) for _ in range(samples))
        return Sampled(contender, TrialState.OK, times, conditions=Conditions(driver="580.95"))

    def _ready(self, entrant: Entrant) -> KernelConfig:
        if self._problem is None:
            raise DeviceCrashed("the device holds no operands; prepare a problem first.")
        config = entrant.contender.config
        assert config is not None
        return config


def _named(contender: Contender, protocol: str) -> Contender:
    """cuBLASLt without an algorithm stands for the one that is best under the protocol."""
    if contender != Contender("cublaslt"):
        return contender
    best = "tile=128x128 stages=6" if protocol == PROTOCOL_COOL else "tile=128x256 stages=4"
    return Contender("cublaslt", algorithm=best)


def _kill_once(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class FakeFactory:
    """Opens a FakeDevice, in this process or another."""

    faults: Faults = field(default_factory=Faults)

    def __call__(self) -> FakeDevice:
        return FakeDevice(self.faults)


@dataclass(frozen=True)
class BrokenFactory:
    """Opens nothing."""

    error: Exception

    def __call__(self) -> FakeDevice:
        raise self.error


class FakeCompiler:
    """Compiles at once, or fails as told. `submitted` records what was asked."""

    def __init__(
        self,
        failing: Callable[[KernelVariant], TrialState | Exception | None] = lambda _: None,
        toolchain: Toolchain = TOOLCHAIN,
    ) -> None:
        self.submitted: list[KernelVariant] = []
        self._failing = failing
        self._toolchain = toolchain

    def toolchain(self) -> Toolchain:
        return self._toolchain

    def submit(self, variant: KernelVariant) -> Future[Cubin | CompileFailure]:
        cached = variant in self.submitted
        self.submitted.append(variant)
        future: Future[Cubin | CompileFailure] = Future()
        failure = self._failing(variant)
        if isinstance(failure, Exception):
            future.set_exception(failure)
        elif failure:
            future.set_result(CompileFailure(variant, failure, "spills 16 bytes"))
        else:
            future.set_result(Cubin(variant, "/nowhere", 168, 0, 0.5, cached))
        return future
