"""What a worker does with its time: jobs first, then misses, and publishing what came of them."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tuner.cli.formats import plural
from tuner.cli.progress import ended_line
from tuner.errors import StoreError, StoreUnavailable, TunerError
from tuner.shape import GemmShape
from tuner.store.generations import Generations
from tuner.store.jobs import Claimed, Jobs
from tuner.store.leases import Leases
from tuner.store.spooling import SpoolingRepository
from tuner.study import Budget, Event, Remark, Tools, tune
from tuner.study.run import stored_setbacks
from tuner.trial import ShapeState

PUBLISHING_SHARE = 0.1
"""Of a worker's time; a snapshot of thousands of shapes takes seconds to build."""

Say = Callable[[str], None]


class Publisher:
    """Publishes after every shape, or less often where publishing takes long."""

    def __init__(
        self, generations: Generations, device_key: str, by: str, patient: SpoolingRepository
    ) -> None:
        self._generations, self._device_key, self._by = generations, device_key, by
        self._patient = patient
        self._waiting: list[GemmShape] = []
        self._due_at = 0.0

    def add(self, shape: GemmShape) -> None:
        """A shape was tuned, and is to be in what is published next."""
        self._waiting.append(shape)

    def publish(self, even_if_early: bool = False) -> str | None:
        """The id of the generation that is served from now on; None if nothing changed, or it is
        too early.

        Raises: StoreError if others kept publishing, or the database cannot be used; the shapes
        are then published the next time.
        """
        began = time.monotonic()
        if not self._waiting or (began < self._due_at and not even_if_early):
            return None
        few = ", ".join(map(str, self._waiting[:3]))
        more = f" and {len(self._waiting) - 3} more" if len(self._waiting) > 3 else ""
        published = self._patient.patiently(
            lambda: self._generations.publish(self._device_key, self._by, f"tuned {few}{more}")
        )
        self._waiting.clear()
        ended = time.monotonic()
        self._due_at = ended + (ended - began) / PUBLISHING_SHARE
        return published.id if published.new else None


@dataclass
class Worker:
    """Everything that one worker works with, and how many shapes ended in each state."""

    tools: Tools
    jobs: Jobs
    leases: Leases
    repository: SpoolingRepository
    publisher: Publisher
    budget: Budget
    misses: bool
    say: Say
    ended: dict[str, int] = field(default_factory=dict)

    def work(self, poll_s: float | None) -> None:
        """Take one job after the other; when there is none, look again every `poll_s` seconds.

        poll_s: None ends it when there is nothing to do.
        Raises: DeviceUnavailable, CompileError or StoreError where nothing more can be done; the
        job in hand is then queued again. So it is when the user interrupts.
        """
        while True:
            claimed = self.repository.patiently(self._claim)
            if claimed is not None:
                with claimed.lease:
                    self.tune(claimed)
                continue
            self._publish(even_if_early=True)
            if poll_s is None:
                return
            time.sleep(poll_s)

    def _claim(self) -> Claimed | None:
        device, toolchain = self.tools.device.identify(), self.tools.compiler.toolchain()
        kernel = (device.key, toolchain, self.tools.source)
        claimed = self.jobs.claim(self.leases, *kernel)
        if claimed is None and self.misses:
            claimed = self.jobs.claim_miss(self.leases, *kernel)
        return claimed

    def tune(self, claimed: Claimed) -> None:
        """Tune one job, publish, and say how it ended. Raises: as `work`."""
        problem = claimed.job.problem
        try:
            outcome = tune(
                problem,
                self.tools,
                self.budget,
                self._told,
                stored_setbacks(self.tools),
                claimed.lease,
            )
        except KeyboardInterrupt:
            with suppress(StoreError):  # if it cannot be told, its lease ends by itself
                self.jobs.give_back(claimed, "its worker was stopped.", blamed=False)
            self.say(f"{problem.shape} was interrupted and is queued again.")
            raise
        except TunerError as error:
            with suppress(StoreError):
                self.jobs.give_back(claimed, str(error), blamed=True)
            raise
        answer = None
        if outcome.state is ShapeState.TUNED:
            answer = self.repository.best(
                problem, outcome.device_key, current=self.tools.compiler.toolchain()
            )
            self.publisher.add(problem.shape)
            self._publish()
        resumed = outcome.run_id != self.tools.run_id
        self.say(f"{claimed.job.origin}: {ended_line(outcome, resumed, answer)}")
        self.ended[outcome.state] = self.ended.get(outcome.state, 0) + 1
        if not self.repository.patiently(
            lambda: self.jobs.end(claimed, outcome.state, outcome.detail)
        ):
            self.say(f"{problem.shape}: another worker has the job by now; both results are kept.")

    def _publish(self, even_if_early: bool = False) -> None:
        try:
            if id := self.publisher.publish(even_if_early):
                self.say(f"published {id[:16]}")
        except StoreUnavailable:
            raise
        except StoreError as error:
            self.say(f"{error} It is published with the next shape.")

    def _told(self, event: Event) -> None:
        if isinstance(event, Remark):
            self.say(event.text)

    def __str__(self) -> str:
        count = sum(self.ended.values())
        states = ", ".join(f"{n} {state}" for state, n in sorted(self.ended.items()))
        return f"{plural(count, 'shape')}: {states}." if count else "No shape was tuned."
