"""One problem on the card: its operands, its verifier, and contenders turned into graphs."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import cupy

from tuner.device.cuda import operands as data
from tuner.device.cuda import timing
from tuner.device.cuda.blas import (
    CublasLaunch,
    Enqueue,
    Libraries,
    LtAlgorithm,
    LtLaunch,
    LtProblem,
)
from tuner.device.cuda.driver import Functions
from tuner.device.cuda.launch import Launch
from tuner.device.cuda.verify import Candidate, Verifier
from tuner.device.protocol import Entrant
from tuner.errors import DeviceError
from tuner.shape import Problem
from tuner.trial import Contender

MAX_ROTATION_BYTES = 4 * 2**30
_LT_TRIAL_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Tools:
    """What outlives a problem: loaded kernels, library handles, the stream, the dice."""

    functions: Functions
    libraries: Libraries
    stream: Any
    order: random.Random


class Workbench:
    """Operands are random and stay as they are; outputs are overwritten by every launch."""

    def __init__(
        self, tools: Tools, problem: Problem, trusted: Entrant, spare_bytes: Callable[[], int]
    ) -> None:
        self._tools, self.problem = tools, problem
        self._verifier = Verifier(problem, tools.stream, tools.order.getrandbits(63))
        self.reference_error = self._verifier.trust(self._candidate(trusted))
        self.sets = data.rotation(problem, min(spare_bytes() // 2, MAX_ROTATION_BYTES))
        generator = cupy.random.default_rng(tools.order.getrandbits(63))
        for operands in self.sets:
            data.fill_normal(operands, generator)
        cupy.cuda.get_current_stream().synchronize()
        self._flushes_l2 = not data.outruns_l2(self.sets, problem)
        self._flushed = cupy.empty(data.ROTATION_BYTES * self._flushes_l2, cupy.uint8)
        self._lt_problem = LtProblem(tools.libraries, problem)

    def faults(self, entrant: Entrant) -> list[str]:
        """What is wrong with a candidate's output, on fresh data."""
        return self._verifier.faults(self._candidate(entrant))

    def resolve(self, entrant: Entrant) -> tuple[Contender, Sequence[Enqueue]]:
        """What to launch; the fastest cuBLASLt algorithm is found here, by a race of its own."""
        problem, libraries = self.problem, self._tools.libraries
        if entrant.contender.name == "kernel":
            candidate = self._candidate(entrant)
            return entrant.contender, [
                Launch(candidate.function, candidate.config, problem, o) for o in self.sets
            ]
        if entrant.contender.name == "cublas":
            return entrant.contender, [CublasLaunch(libraries, problem, o) for o in self.sets]
        algorithms = self._lt_problem.algorithms()
        if entrant.contender.algorithm is not None:
            algorithms = [a for a in algorithms if a.attributes() == entrant.contender.algorithm]
        if not algorithms:
            raise DeviceError(f"cuBLASLt's heuristic offers no such algorithm for {problem.shape}.")
        best = algorithms[0] if len(algorithms) == 1 else self._fastest(algorithms)
        contender = replace(entrant.contender, algorithm=best.attributes())
        return contender, self._lt_launches(best)

    def graph(
        self, launches: Sequence[Enqueue], target_us: float = timing.GRAPH_TARGET_US
    ) -> timing.Graph:
        """A graph of about `target_us`, over all operand sets."""
        estimate_us = timing.estimate_us(self._tools.stream, launches)
        count = timing.launches_for(estimate_us, len(self.sets), target_us)
        return timing.capture(self._tools.stream, launches, count)

    def track(self, look: Callable[[], None] = lambda: None) -> timing.Track:
        """Where this problem's races are run."""
        return timing.Track(self._tools.stream, self._tools.order, self._between, look)

    def _between(self) -> None:
        if self._flushes_l2:
            self._flushed.data.memset_async(0, self._flushed.nbytes, self._tools.stream)

    def _fastest(self, algorithms: Sequence[LtAlgorithm]) -> LtAlgorithm:
        graphs = [self.graph(self._lt_launches(a)) for a in algorithms]
        timing.warm(self._tools.stream, graphs[0], timing.WARM_SECONDS / 4)
        samples = timing.race_hot(self.track(), graphs, _LT_TRIAL_ROUNDS)
        medians = [median(taken) for taken in samples]
        return algorithms[medians.index(min(medians))]

    def _lt_launches(self, algorithm: LtAlgorithm) -> Sequence[Enqueue]:
        return [LtLaunch(self._lt_problem, algorithm, self.problem, o) for o in self.sets]

    def _candidate(self, entrant: Entrant) -> Candidate:
        config = entrant.contender.config
        if config is None or entrant.cubin is None:
            raise DeviceError(f"the contender {entrant.contender.name} has no kernel to launch.")
        return Candidate(self._tools.functions.load(entrant.cubin), config)
