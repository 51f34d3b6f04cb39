"""Counts look-ups that had no exact answer, in memory; the store hears of them in batches."""

import logging
from collections.abc import Callable
from math import inf
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from tuner.errors import StoreError
from tuner.hardware import device_class
from tuner.shape import Problem
from tuner.store.misses import Misses, MissKey, Tally
from tuner.store.repository import Repository

FLUSH_S = 5.0
MOST_PROBLEMS = 2_000
"""Distinct problems that are held between two flushes, so that a scan of all shapes is bounded."""
TRIM_EVERY = 10
"""Flushes between two looks at how long the table has become."""
ASSUMED_REGRET = {"layer": 0.005, "nearest": 0.03, "sibling": 0.05, "model": 0.1, "none": 0.1}
"""Share of time that an answer loses, where whoever counts does not say."""

log = logging.getLogger(__name__)


class MissCounter:
    """A context: on entering, a thread begins to flush; on leaving, the rest is flushed.

    What cannot be written now is kept for the next flush, so that counts outlive an outage of the
    database, up to the limit of problems.
    """

    def __init__(self, store: Callable[[], Repository], every_s: float = FLUSH_S) -> None:
        """store: opens the store, or gives the open one. Raises: StoreError if it cannot."""
        self._store, self._every_s = store, every_s
        self._lock, self._flushing = Lock(), Lock()
        self._counted: dict[MissKey, Tally] = {}
        self._dropped = 0
        self._flushes = 0
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = Thread(target=self._beat, name="misses", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._flush_or_log()

    def count(
        self, problem: Problem, device_key: str, tier: str, regret: float | None = None
    ) -> None:
        """One more look-up of `problem` that `tier` served; takes a microsecond, never fails.

        tier: `layer`, `nearest`, `sibling` or `model`; `none` where nothing was served. regret:
        the share of time that the answer is expected to lose. A shape that the kernel cannot run,
        or whose operands the device cannot hold, is no miss: no tuning would help.
        """
        device = device_class(device_key)
        room = device.memory_gb * 2**30 if device else inf
        if problem.shape.unsupported_reason() or problem.shape.operand_bytes > room:
            return
        lost = ASSUMED_REGRET[tier] if regret is None else regret
        key = (problem, device_key, tier)
        with self._lock:
            tally = self._counted.get(key)
            if tally is None:
                if len(self._counted) >= MOST_PROBLEMS:
                    self._dropped += 1
                    return
                tally = self._counted[key] = Tally()
            tally.hits += 1
            tally.regret += lost

    def flush(self) -> None:
        """Write what was counted since the last time. Raises: StoreError; it is then kept."""
        with self._flushing:
            with self._lock:
                counted, self._counted = self._counted, {}
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.warning("%d missed look-ups were not counted: too many shapes at once", dropped)
            if not counted:
                return
            try:
                misses = Misses(self._store())
                misses.add(counted)
            except BaseException:
                self._keep(counted)
                raise
            self._flushes += 1
            if self._flushes % TRIM_EVERY == 0:
                misses.trim()

    def _keep(self, counted: dict[MissKey, Tally]) -> None:
        with self._lock:
            for key, tally in self._counted.items():
                if (known := counted.get(key)) is not None:
                    known.hits += tally.hits
                    known.regret += tally.regret
                elif len(counted) < MOST_PROBLEMS:
                    counted[key] = tally
            self._counted = counted

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            self._flush_or_log()

    def _flush_or_log(self) -> None:
        try:
            self.flush()
        except StoreError as error:
            log.warning("missed look-ups are kept in memory: %s", error)
