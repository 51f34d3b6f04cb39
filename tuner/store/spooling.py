"""A repository that goes on while the database cannot be used: nothing is lost, nothing doubled."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.errors import StoreError, StoreUnavailable
from tuner.hardware import DeviceIdentity
from tuner.lookup import Answer, Layer
from tuner.shape import Problem
from tuner.store.layers import layers_at
from tuner.store.patience import Backoff, Patience, Say
from tuner.store.repository import Repository
from tuner.store.spool import Entry, RunEnd, Spool, read, set_aside
from tuner.trial import Measurement, ShapeOutcome, Source, Toolchain

PATIENCE_S = 300.0
"""How long a question waits for an answer; what is measured meanwhile needs none."""
BATCH = 500

T = TypeVar("T")


class SpoolingRepository:
    """What a driver needs of a `Repository`, through an outage.

    What is added while the database cannot be used goes to a file, and from there to the database
    as soon as it is back: with the next call, at the end, or when the next run on this machine
    opens the same database. Questions wait for the database, after what was spooled is in it.
    """

    def __init__(
        self, repository: Repository, folder: Path, say: Say, patience_s: float = PATIENCE_S
    ) -> None:
        """folder: where the files are. say: told in one sentence what happens."""
        self._repository = repository
        self._spool = Spool(folder, repository.location)
        self._say = say
        self._patience = Patience(patience_s, say)
        self._backoff = Backoff()
        self._lock = RLock()
        self.location = repository.location

    def __enter__(self) -> Self:
        self.recover()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Try once more; what cannot be written stays in its file for the next run."""
        with self._lock:
            with suppress(StoreError):
                self._flush()
            if not self._spool.is_empty:
                self._say(
                    f"{len(self._spool.entries())} results are in {self._spool.path}; the next "
                    f"`tuner run` on {self.location} writes them to it."
                )
            self._spool.close()

    def recover(self) -> None:
        """Write what processes that died left in their files. Raises: StoreUnavailable.

        A file that holds anything else than entries, or an entry that the database refuses, is
        renamed and kept.
        """
        for path in self._spool.left_behind():
            entries, faults = read(path)
            try:
                self._write(entries)
            except StoreUnavailable:
                raise
            except StoreError as error:
                entries, faults = [], [str(error)]
            if entries:
                self._say(f"wrote {len(entries)} results that an earlier run had kept in {path}.")
            if faults:
                kept = set_aside(path)
                self._say(f"{faults[0]} The file was kept as {kept}.")
            else:
                path.unlink()

    def patiently(self, question: Callable[[], T]) -> T:
        """Ask again while the database cannot be used; what was spooled is written first.

        Raises: StoreUnavailable once patience is at its end; StoreError for other reasons.
        """

        def ask() -> T:
            with self._lock:
                self._flush()
            return question()

        return self._patience(ask)

    def add(self, rows: Sequence[Measurement]) -> None:
        """As `Repository.add`. Raises: StoreError if the file cannot be written either."""
        self._keep(rows, lambda: self._repository.add(rows))

    def finish_shape(self, outcome: ShapeOutcome) -> None:
        """As `Repository.finish_shape`. Raises: as `add`."""
        self._keep([outcome], lambda: self._repository.finish_shape(outcome))

    def finish_run(self, run_id: str, exit_code: int) -> None:
        """As `Repository.finish_run`. Raises: as `add`."""
        end = RunEnd(run_id, exit_code)
        self._keep([end], lambda: self._repository.finish_run(run_id, exit_code))

    def start_run(self, run_id: str, command: str, source: Source, device: DeviceIdentity) -> None:
        """As `Repository.start_run`: a run that cannot begin does not wait."""
        self._repository.start_run(run_id, command, source, device)

    def attempts(
        self,
        problem: Problem,
        device_key: str,
        *,
        sources: Collection[str],
        toolchain: Toolchain | None = None,
    ) -> list[Measurement]:
        return self.patiently(
            lambda: self._repository.attempts(
                problem, device_key, sources=sources, toolchain=toolchain
            )
        )

    def setbacks(
        self, device_key: str, toolchain: Toolchain, *, sources: Collection[str]
    ) -> list[Measurement]:
        return self.patiently(
            lambda: self._repository.setbacks(device_key, toolchain, sources=sources)
        )

    def shapes(self, device_key: str) -> list[ShapeOutcome]:
        return self.patiently(lambda: self._repository.shapes(device_key))

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None:
        return self.patiently(
            lambda: self._repository.outcome(problem, device_key, toolchain, source)
        )

    def best(self, problem: Problem, device_key: str, **how: Any) -> Answer | None:
        return self.patiently(lambda: self._repository.best(problem, device_key, **how))

    def layers_at(self, problem: Problem, device_key: str, current: Toolchain) -> list[Layer]:
        """As `tuner.store.layers.layers_at`."""
        return self.patiently(lambda: layers_at(self._repository, problem, device_key, current))

    def _keep(self, entries: Sequence[Entry], write: Callable[[], None]) -> None:
        with self._lock:
            began = monotonic()
            try:
                if self._is_back():
                    write()
                    return
            except StoreUnavailable as error:
                self._backoff.failed(monotonic() - began)
                if self._spool.is_empty:
                    self._say(f"{error} Results are kept in {self._spool.path} until it is back.")
            try:
                self._spool.append(entries)
            except OSError as error:
                raise StoreError(
                    f"the database {self.location} cannot be used, and neither can "
                    f"{self._spool.path} ({error.strerror}); free some space."
                ) from error

    def _is_back(self) -> bool:
        """Whether the database can be used, as far as is known; the spool is then empty.

        Raises: StoreUnavailable if it was tried and cannot.
        """
        if self._spool.is_empty:
            return True
        if self._backoff.due_in_s > 0:
            return False
        self._flush()
        return True

    def _flush(self) -> None:
        if self._spool.is_empty:
            return
        entries = self._spool.entries()
        self._write(entries)
        self._spool.clear()
        self._backoff = Backoff()
        self._say(f"the database is back; wrote {len(entries)} results that were kept.")

    def _write(self, entries: Sequence[Entry]) -> None:
        rows = [entry for entry in entries if isinstance(entry, Measurement)]
        for start in range(0, len(rows), BATCH):
            self._repository.add(rows[start : start + BATCH])
        for entry in entries:
            if isinstance(entry, ShapeOutcome):
                self._repository.finish_shape(entry)
            elif isinstance(entry, RunEnd):
                self._repository.finish_run(entry.run_id, entry.exit_code)
