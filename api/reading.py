"""One reading of a whole database, kept up with what is stored after it."""

import gzip
import logging
from collections.abc import Iterable, Sequence
from time import monotonic, sleep

from tuner.api.layers import DeviceLayers
from tuner.api.view import Published, View
from tuner.errors import StoreError, StoreUnavailable
from tuner.legality import faults
from tuner.lookup import Answer, Miss, answers_on_terms, why_none
from tuner.lookup.book import Book, Measured
from tuner.shape import Problem
from tuner.store.best_answers import REFUSED
from tuner.store.changes import DeviceRow, Key
from tuner.store.generations import Generations
from tuner.store.repository import Repository, StoredDevice
from tuner.trial import Toolchain

log = logging.getLogger(__name__)


class Reading:
    """complete: all that was due at its start was read once. For one thread."""

    def __init__(self, due: Iterable[Key], current: Toolchain | None) -> None:
        """due: every problem that is stored. current: the toolchain that answers are judged by."""
        self.complete = False
        self.current = current
        self._due = dict.fromkeys(due)
        self._failed: list[Key] = []
        self._generations_due = True
        self._devices: Sequence[DeviceRow] = ()
        self._fresh: dict[str, dict[Problem, Measured | Miss | None]] = {}
        self._published: dict[str, Published] = {}
        self._layers: dict[str, DeviceLayers] = {}
        self._books: dict[str, Book] = {}
        self._view: View | None = None

    @property
    def due(self) -> int:
        """Problems that are still to be read."""
        return len(self._due)

    def add(self, due: Iterable[Key], devices: Sequence[DeviceRow], published: bool) -> None:
        """Read these too, or once more. published: read what the devices serve, too."""
        self._due.update(dict.fromkeys(due))
        self._generations_due |= published
        if devices != self._devices:
            self._devices, self._view = devices, None

    def go_on(self, repository: Repository, until: float) -> None:
        """Read what is due, up to the monotonic time `until`. Raises: StoreError."""
        while self._due and (began := monotonic()) < until:
            key = device_key, problem = next(iter(self._due))
            try:
                found = self._read(repository, device_key, problem)
            except StoreError:
                raise
            except Exception:
                # One problem with rows that nobody foresaw must not keep the others.
                log.exception("%s on %s could not be read", problem.shape, device_key)
                found = None
                self._failed.append(key)
            self._fresh.setdefault(device_key, {})[problem] = found
            del self._due[key]
            if self.complete:
                sleep(monotonic() - began)  # those who ask come first
        if self._generations_due:
            self._take_generations(Generations(repository))
            self._generations_due = False
        if not self._due and not self.complete:
            self.complete, self._view = True, None

    def try_again(self) -> None:
        """What could not be read is due once more."""
        self.add(self._failed, self._devices, published=False)
        self._failed = []

    def view(self) -> View:
        """All that was read so far; the same object if nothing was read since."""
        if self._view is None or self._fresh:
            self._view = self._made()
        return self._view

    def _made(self) -> View:
        for row in self._devices:
            book = self._books.get(row.key) or Book(row.key, row.name, current=self.current)
            fresh, layers = self._fresh.pop(row.key, {}), self._layers_of(row.key).renewed()
            if fresh or layers is not None:
                book = book.revised(fresh, layers)
            self._books[row.key] = book
        return View(
            whole=self.complete,
            devices={
                row.key: StoredDevice(row.key, row.name, row.sms, len(self._books[row.key]))
                for row in self._devices
            },
            books=dict(self._books),
            published=dict(self._published),
            current=self.current,
        )

    def _take_generations(self, generations: Generations) -> None:
        for row in self._devices:
            try:
                snapshot = generations.current(row.key)
            except StoreUnavailable:
                raise
            except StoreError as error:
                log.warning("what %s serves was left as it was: %s", row.key, error)
                continue
            known = self._published.get(row.key)
            if snapshot is None or (known and known.id == snapshot.id):
                continue
            self._published[row.key] = Published(snapshot.id, gzip.compress(snapshot.body, mtime=0))
            self._layers_of(row.key).publish(snapshot.layers)
            self._view = None

    def _layers_of(self, device_key: str) -> DeviceLayers:
        return self._layers.setdefault(device_key, DeviceLayers(self.current))

    def _read(
        self, repository: Repository, device_key: str, problem: Problem
    ) -> Measured | Miss | None:
        races = repository.counted_races(problem, device_key)
        self._layers_of(device_key).see(problem, races)
        found = answers_on_terms(races, self.current)
        if found and _legal(found[0]):
            best, others = found
            return best, {label: one for label, one in others.items() if _legal(one)}
        outcome = repository.latest_outcome(problem, device_key)
        if outcome is None or outcome.state not in REFUSED:
            return None
        return why_none(problem, outcome.device_name, outcome)


def _legal(answer: Answer) -> bool:
    return next(iter(faults(answer.config, answer.problem)), None) is None
