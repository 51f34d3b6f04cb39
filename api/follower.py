"""Keeps a view of the database in memory, in step with what is stored, whoever stores it."""

import logging
from collections.abc import Callable, Iterable
from threading import Event, Thread
from time import monotonic, time

from tuner.api.reader import StoreHandle
from tuner.api.reading import Reading
from tuner.api.view import View
from tuner.entry import newest_compiler
from tuner.errors import StoreError
from tuner.store.changes import ChangeFeed, Changes, all_problems, toolchains
from tuner.store.repository import Repository
from tuner.trial import Toolchain

POLL_S = 0.5
"""Between two looks at the database."""
PORTION_S = 1.0
"""For how long problems are read before the view is renewed, while there are many."""
AFTER_A_FAULT_S = 10.0
"""Before what failed for no reason of the database's is tried again."""
SILENCE_S = 15.0
"""After which a database that is being waited for counts as gone."""

log = logging.getLogger(__name__)


class Follower:
    """A thread that follows the database; readers take `view` and never wait.

    When the database is gone the last view stays. A problem is read anew when rows of it were
    added, so that following costs as much as is written, not as much as is stored.
    """

    def __init__(
        self,
        store: StoreHandle,
        kernel_hash: str | None = None,
        looked: Callable[["Follower"], None] = lambda _: None,
    ) -> None:
        """kernel_hash: the kernel that answers are judged by; None: by none, nothing is stale.
        looked: called after every look."""
        self._store, self._kernel_hash, self._looked = store, kernel_hash, looked
        self._feed = ChangeFeed()
        self._reading = Reading((), None)
        self._stopping, self._first = Event(), Event()
        self._thread: Thread | None = None
        self._looked_at: float | None = None
        self.in_step_at: float | None = None
        """When the view was last in step with the database, in Unix time; None if it never was."""
        self._heard_at = self._tried_again_at = monotonic()
        self._failure: StoreError | None = None
        self.view = View()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = Thread(target=self._follow, name="follower", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 10.0) -> None:
        """End the thread; one that waits for a database in vain is left behind."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(patience_s)

    def wait(self, seconds: float) -> None:
        """Until the view is whole or the database has failed, but no longer than `seconds`."""
        self._first.wait(seconds)

    @property
    def failure(self) -> str | None:
        """Why the database could not be read at the last try; None if it could."""
        if self._failure is not None:
            return str(self._failure)
        silent_s = monotonic() - self._heard_at
        if silent_s > SILENCE_S:
            return f"The database has not answered for {silent_s:.0f} s."
        return None

    @property
    def age_s(self) -> float | None:
        """Seconds since the view was in step with the database; None if it never was."""
        return None if self._looked_at is None else monotonic() - self._looked_at

    @property
    def due(self) -> int:
        """Problems that are stored and not in the view yet."""
        return self._reading.due

    def _follow(self) -> None:
        while not self._stopping.is_set():
            pause = POLL_S
            try:
                more = self._step(self._store.repository())
                self._failure, self._heard_at = None, monotonic()
                pause = 0.0 if more else pause
            except StoreError as error:
                if self._failure is None:
                    log.warning("answers are as old as the last look at the database: %s", error)
                self._failure = error
                self._store.forget()
            except Exception:
                log.exception("following the database failed; all of it is read again")
                self._feed.forget()
                pause = AFTER_A_FAULT_S
            if self.view.whole or self._failure:
                self._first.set()
            self._looked(self)
            self._stopping.wait(pause)

    def _step(self, repository: Repository) -> bool:
        """One look, and part of what it asks for; whether there is more to do at once."""
        looked_at = monotonic()
        changes = self._feed.look(repository)
        reading = self._reading = self._judged_anew(repository, changes) or self._reading
        reading.add((*changes.raced, *changes.ended), changes.devices, changes.published)
        if looked_at > self._tried_again_at + AFTER_A_FAULT_S:
            self._tried_again_at = looked_at
            reading.try_again()
        reading.go_on(repository, until=looked_at + PORTION_S)
        # What was whole stays until another reading is.
        if reading.complete or not self.view.whole:
            self.view = reading.view()
        more = bool(reading.due) or changes.more
        if not more:
            self._looked_at, self.in_step_at = looked_at, time()
        return more

    def _judged_anew(self, repository: Repository, changes: Changes) -> Reading | None:
        """A new reading, where what was read is void or another toolchain is current now."""
        try:
            current = self._reading.current
            if self._kernel_hash is not None:
                known = toolchains(repository, self._kernel_hash) if changes.whole else [current]
                current = _newest(self._kernel_hash, (*known, *changes.toolchains))
            if not changes.whole and current == self._reading.current:
                return None
            return Reading(all_problems(repository), current)
        except StoreError:
            self._feed.forget()  # or it would not be told again
            raise


def _newest(kernel_hash: str, found: Iterable[Toolchain | None]) -> Toolchain:
    """That kernel with the latest compiler that rows were made with."""
    made_with = ((one.kernel_hash, one.nvrtc_version) for one in found if one)
    return Toolchain(kernel_hash, newest_compiler(kernel_hash, made_with))
