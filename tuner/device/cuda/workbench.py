"""One problem on the card: its operands, its verifier, and contenders turned into graphs."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import cupy
from nvmath.bindings import cublasLt as lt

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
from tuner.device.cuda.workspace import Workspace
from tuner.device.protocol import Entrant
from tuner.errors import DeviceError
from tuner.shape import Problem
from tuner.trial import Contender

MAX_ROTATION_BYTES = 4 * 2**30
LT_TRIAL_ROUNDS = 5
CHECKED_SETS = 4


@dataclass(frozen=True, slots=True)
class Tools:
    """What outlives a problem: kernels, library handles, the stream, its workspace, the dice."""

    functions: Functions
    libraries: Libraries
    stream: Any
    workspace: Workspace
    order: random.Random


@dataclass(frozen=True, slots=True)
class Starter:
    """A contender and the graph that is timed."""

    contender: Contender
    graph: timing.Graph
    candidate: Candidate | None = None


class Workbench:
    """Operands are random and stay as they are; outputs are overwritten by every launch."""

    def __init__(
        self, tools: Tools, problem: Problem, trusted: Entrant, spare_bytes: Callable[[], int]
    ) -> None:
        self._tools, self.problem = tools, problem
        self._verifier = Verifier(
            problem, tools.stream, tools.workspace, tools.order.getrandbits(63)
        )
        self.reference_error = self._verifier.trust(self._candidate(trusted))
        self.sets = data.rotation(problem, min(spare_bytes() // 2, MAX_ROTATION_BYTES))
        generator = cupy.random.default_rng(tools.order.getrandbits(63))
        for operands in self.sets:
            data.fill_normal(operands, generator)
        cupy.cuda.get_current_stream().synchronize()
        self._flushes_l2 = not data.outruns_l2(self.sets, problem)
        self._flushed = cupy.empty(data.ROTATION_BYTES * self._flushes_l2, cupy.uint8)
        self._lt_problem = LtProblem(tools.libraries, problem)
        self._expected: list[Any] | None = None

    def faults(self, entrant: Entrant) -> list[str]:
        """What is wrong with a candidate's output, on fresh data."""
        return self._verifier.faults(self._candidate(entrant))

    def residency_fault(self, entrant: Entrant) -> str | None:
        """Why a candidate must not be launched on this device; that is no fault of its kernel."""
        return self._verifier.residency_fault(self._candidate(entrant))

    def enter(self, entrants: Sequence[Entrant], protocol: str) -> list[Starter | None]:
        """Contenders ready to be timed under `protocol`, with graphs of equally many launches.

        A cublaslt entrant without an algorithm stands for the fastest, by a race of its own under
        the same protocol, that the heuristic offers and no other entrant names; None if there is
        none.
        """
        named = {e.contender.algorithm for e in entrants}
        fields: list[tuple[Contender, Sequence[Enqueue]] | None] = [
            self._fastest_algorithm(named, protocol)
            if e.contender == Contender("cublaslt")
            else (e.contender, self._launches(e))
            for e in entrants
        ]
        count = self._launch_count([field[1] for field in fields if field])
        return [
            field and Starter(field[0], self._graph(field[1], count), self._of_ours(entrant))
            for entrant, field in zip(entrants, fields, strict=True)
        ]

    def single(self, entrant: Entrant, target_us: float) -> Starter:
        """One contender, with a graph of about `target_us`."""
        launches = self._launches(entrant)
        count = self._launch_count([launches], target_us)
        return Starter(entrant.contender, self._graph(launches, count), self._of_ours(entrant))

    def still_right(self, starter: Starter) -> bool:
        """Whether a kernel's graph, run back to back as it was timed, gives the trusted bits.

        Looks at the first sets only: the launches of a graph differ in their operands alone.
        """
        looked_at = self.sets[:CHECKED_SETS]
        if starter.candidate is None:
            return True
        expected_bits = self._expected_bits(starter.candidate, looked_at)
        for operands in looked_at:
            data.poison(operands)
        self._tools.workspace.poison()
        cupy.cuda.get_current_stream().synchronize()
        starter.graph.graph.launch(self._tools.stream)
        self._tools.stream.synchronize()
        return all(
            bool((data.output(operands) == expected).all()) and data.guards_intact(operands)
            for operands, expected in zip(looked_at, expected_bits, strict=True)
        )

    def _expected_bits(
        self, candidate: Candidate, sets: Sequence[data.OperandSet]
    ) -> Sequence[Any]:
        """Those of a config that splits K are its own; all others share the trusted config's."""
        if candidate.config.knobs.split_k > 1:
            return [self._verifier.expected_output(candidate, o) for o in sets]
        if self._expected is None:
            self._expected = [self._verifier.expected_output(candidate, o) for o in sets]
        return self._expected

    def track(self, look: Callable[[], None] = lambda: None) -> timing.Track:
        """Where this problem's races are run."""
        return timing.Track(self._tools.stream, self._tools.order, self._between, look)

    def _between(self) -> None:
        if self._flushes_l2:
            self._flushed.data.memset_async(0, self._flushed.nbytes, self._tools.stream)

    def _launches(self, entrant: Entrant) -> Sequence[Enqueue]:
        contender, problem, libraries = entrant.contender, self.problem, self._tools.libraries
        if contender.name == "cublas":
            return [CublasLaunch(libraries, problem, o) for o in self.sets]
        if contender.name == "cublaslt":
            for algorithm in self._lt_problem.algorithms():
                if algorithm.attributes() == contender.algorithm:
                    return self._lt_launches(algorithm)
            raise DeviceError(f"cuBLASLt's heuristic offers no such algorithm for {problem.shape}.")
        candidate = self._candidate(entrant)
        return [
            Launch(candidate.function, candidate.config, problem, o, self._tools.workspace)
            for o in self.sets
        ]

    def _fastest_algorithm(
        self, named: Collection[str | None], protocol: str
    ) -> tuple[Contender, Sequence[Enqueue]] | None:
        offered = {a.attributes(): a for a in self._lt_problem.algorithms()}
        fields = [
            (Contender("cublaslt", algorithm=attributes), launches)
            for attributes, algorithm in offered.items()
            if attributes not in named and self._runs(launches := self._lt_launches(algorithm))
        ]
        if len(fields) < 2:
            return fields[0] if fields else None
        count = self._launch_count([launches for _, launches in fields])
        graphs = [self._graph(launches, count) for _, launches in fields]
        samples = timing.race_graphs(
            self.track(), graphs, protocol, LT_TRIAL_ROUNDS, timing.WARM_SECONDS / 4
        )
        medians = [median(taken) for taken in samples]
        return fields[medians.index(min(medians))]

    def _runs(self, launches: Sequence[Enqueue]) -> bool:
        """Whether cuBLASLt takes what its heuristic offered; it may refuse at launch."""
        try:
            launches[0].enqueue(self._tools.stream.ptr)
        except lt.cuBLASLtError:
            return False
        return True

    def _launch_count(
        self, fields: Sequence[Sequence[Enqueue]], target_us: float = timing.GRAPH_TARGET_US
    ) -> int:
        """One count for all, so that what starting a graph costs is the same share for each."""
        if self._flushes_l2:
            return len(self.sets)  # a second turn would find its operands in L2
        fastest_us = min(timing.estimate_us(self._tools.stream, field) for field in fields)
        return timing.launches_for(fastest_us, len(self.sets), target_us)

    def _graph(self, launches: Sequence[Enqueue], count: int) -> timing.Graph:
        return timing.capture(self._tools.stream, launches, count)

    def _lt_launches(self, algorithm: LtAlgorithm) -> Sequence[Enqueue]:
        return [LtLaunch(self._lt_problem, algorithm, self.problem, o) for o in self.sets]

    def _of_ours(self, entrant: Entrant) -> Candidate | None:
        return self._candidate(entrant) if entrant.contender.config else None

    def _candidate(self, entrant: Entrant) -> Candidate:
        config = entrant.contender.config
        if config is None or entrant.cubin is None:
            raise DeviceError(f"the contender {entrant.contender.name} has no kernel to launch.")
        return Candidate(self._tools.functions.load(entrant.cubin), config)
