"""`CudaDevice`: one GPU behind the `Device` protocol. Runs in a process that may be killed."""

import os
import random
from collections.abc import Sequence

import cupy
from cuda.bindings import driver

from tuner.device.cuda import timing
from tuner.device.cuda.blas import Libraries
from tuner.device.cuda.conditions import Monitor, Reading, summarize
from tuner.device.cuda.driver import Functions, check
from tuner.device.cuda.workbench import Starter, Tools, Workbench
from tuner.device.cuda.workspace import Workspace
from tuner.device.protocol import Entrant, Prepared
from tuner.device.throttling import Look, described, rejected, without
from tuner.errors import DeviceCrashed, DeviceError, DoesNotFit
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Conditions, Sampled, TrialState

_SPARE_BYTES = 2 * 2**30
"""For the library workspaces, the fp64 reference's chunks and the context itself."""
_NOTHING_LEFT = (TrialState.UNSTABLE, (), "the heuristic offers no algorithm but those named.")
_SCREEN_SAMPLES = 5
_SCREEN_TARGET_US = 600.0


class CudaDevice:
    """Owns the context of one GPU. See `tuner.device.protocol.Device` for the contract."""

    def __init__(self, index: int) -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"no usable NVIDIA GPU here ({error}).") from error
        if index >= count:
            raise DeviceError(f"there is no GPU {index}; this machine has {count}.")
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        capability = (properties["major"], properties["minor"])
        name = properties["name"].decode()
        if capability != (9, 0):
            raise DeviceError(
                f"GPU {index} is a {name} of compute capability {capability[0]}.{capability[1]}; "
                "the kernel needs 9.0 (H100, H200)."
            )
        cupy.cuda.Device(index).use()
        cupy.cuda.runtime.free(0)  # makes the context
        self._monitor = Monitor(cupy.cuda.runtime.deviceGetPCIBusId(index))
        self._tools = Tools(
            Functions(),
            Libraries(),
            cupy.cuda.Stream(non_blocking=True),
            Workspace(),
            random.Random(os.urandom(8)),
        )
        self._identity = DeviceIdentity(
            name=name,
            compute_capability=capability,
            sms=properties["multiProcessorCount"],
            memory_bytes=self._monitor.memory_bytes(),
            uuid=self._monitor.uuid,
            driver=self._monitor.driver,
            cublas_version=self._tools.libraries.version(),
            l2_bytes=properties["l2CacheSize"],
        )
        self._bench: Workbench | None = None

    def identify(self) -> DeviceIdentity:
        return self._identity

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        self.close()
        needed, free = needed_bytes(problem), self._free_bytes()
        if needed > free:
            raise DoesNotFit(
                f"{problem.shape} does not fit: it needs {needed / 2**30:.1f} GiB to be measured "
                f"and proved, and {self._identity.name} has {free / 2**30:.1f} GiB free."
            )
        self._bench = Workbench(
            self._tools, problem, trusted, lambda: self._free_bytes() - _SPARE_BYTES
        )
        return Prepared(len(self._bench.sets), self._bench.reference_error)

    def verify(self, entrant: Entrant) -> Sampled:
        if refusal := self._require_bench().residency_fault(entrant):
            return Sampled(entrant.contender, TrialState.UNSTABLE, (), f"{refusal}.")
        faults = self._require_bench().faults(entrant)
        state = TrialState.WRONG_RESULT if faults else TrialState.OK
        return Sampled(entrant.contender, state, (), "; ".join(faults), self._conditions([]))

    def screen(self, entrant: Entrant) -> Sampled:
        bench = self._require_bench()
        starter = bench.single(entrant, _SCREEN_TARGET_US)
        # The first is discarded: it finds the card as the work before left it.
        samples = timing.race_hot(bench.track(), [starter.graph], 1 + _SCREEN_SAMPLES)[0][1:]
        return self._sampled(starter, samples, [self._monitor.read()])

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        if protocol not in (PROTOCOL_HOT, PROTOCOL_COOL):
            raise DeviceError(f"a race is run under {PROTOCOL_HOT} or {PROTOCOL_COOL}.")
        bench = self._require_bench()
        entered = bench.enter(entrants, protocol)
        starters = [starter for starter in entered if starter]
        readings: list[Reading] = []
        track = bench.track(lambda: readings.append(self._monitor.read()))
        graphs = [starter.graph for starter in starters]
        taken = timing.race_graphs(track, graphs, protocol, rounds, timing.WARM_SECONDS)
        slowed = rejected([Look(r.sm_clock_mhz, r.throttle_reasons) for r in readings])
        raced = iter(
            [
                self._sampled(s, without(samples, slowed), readings, slowed)
                for s, samples in zip(starters, taken, strict=True)
            ]
        )
        return [
            next(raced) if starter else Sampled(entrant.contender, *_NOTHING_LEFT)
            for entrant, starter in zip(entrants, entered, strict=True)
        ]

    def close(self) -> None:
        self._bench = None
        cupy.get_default_memory_pool().free_all_blocks()

    def _sampled(
        self,
        starter: Starter,
        samples: Sequence[float],
        readings: list[Reading],
        slowed: frozenset[int] = frozenset(),
    ) -> Sampled:
        contender, conditions = starter.contender, self._conditions(readings)
        if contender.config is not None and not self._require_bench().still_right(starter):
            detail = "its output is no longer right when it is run back to back, as it was timed."
            return Sampled(contender, TrialState.WRONG_RESULT, (), detail, conditions)
        told = described(slowed, len(readings))
        return Sampled(
            contender, TrialState.OK, tuple(samples), told, conditions, len(slowed)
        ).checked()

    def _conditions(self, readings: list[Reading]) -> Conditions:
        identity = self._identity
        return summarize(readings, identity.driver, identity.cublas_version, identity.uuid)

    def _require_bench(self) -> Workbench:
        if self._bench is None:
            raise DeviceCrashed("the device holds no operands; prepare a problem first.")
        return self._bench

    def _free_bytes(self) -> int:
        free, _ = check(driver.cuMemGetInfo())
        return int(free) + int(cupy.get_default_memory_pool().free_bytes())


def needed_bytes(problem: Problem) -> int:
    """Device memory that proving and timing `problem` takes, in bytes.

    Three operand sets (timed, random, integers), an expected output for each and one in transit,
    one operand in fp64 with the fp32 it is widened from, and the three pairs of buffers of a chain.
    """
    s = problem.shape
    wide_elements = s.n * s.k if problem.d == "row" else s.m * s.k
    chained = 6 * s.m * max(s.n, s.k) + s.n * s.k
    kept = 3 * s.operand_bytes + 4 * 2 * s.m * s.n + 2 * chained
    return kept + 16 * wide_elements + _SPARE_BYTES
