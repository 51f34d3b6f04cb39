"""Which driver tunes which problem, where several work through one list."""

from types import TracebackType
from typing import Self

from tuner.shape import Problem
from tuner.study.ports import Lease, Tools
from tuner.trial import ShapeOutcome


class Turns:
    """The turns of one driver; without leases every problem is its own."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._key, self._toolchain = tools.device.identify().key, tools.compiler.toolchain()
        self._refused: dict[Problem, ShapeOutcome | None] = {}

    def claim(self, problem: Problem) -> Lease | None:
        """The right to tune `problem`, or None while another driver has it."""
        if self._tools.leases is None:
            return Alone()
        told = problem, self._key, self._toolchain, self._tools.source
        # Read first: what another driver stores from here on is a result of this run's time.
        before = self._stored(problem)
        lease = self._tools.leases.claim(*told)
        if lease is None:
            self._refused.setdefault(problem, before)
        return lease

    def ended_elsewhere(self, problem: Problem) -> ShapeOutcome | None:
        """What another driver stored since it kept `problem` from this one, whatever it is."""
        if problem not in self._refused:
            return None
        now = self._stored(problem)
        return None if now == self._refused[problem] else now

    def _stored(self, problem: Problem) -> ShapeOutcome | None:
        return self._tools.repository.outcome(
            problem, self._key, self._toolchain, self._tools.source
        )


class Alone:
    """The lease of the only driver."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def is_held(self) -> bool:
        return True
