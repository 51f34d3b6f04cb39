"""Asks the service, in a thread that nobody waits for longer than the client promises."""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic, time

from tuner.client.cache import Asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.client.cache import Cache
    from tuner.client.told import Told

GOES_ON_S = 10.0
"""A thread that was not waited for still fills the cache, if it gets its answer in this time."""


class Refreshed:
    """What came of it. told: None if no server was asked, or it gave nothing."""

    __slots__ = ("id", "problem", "told")

    def __init__(self, id: str | None, told: Told | None, problem: str = "") -> None:
        self.id, self.told, self.problem = id, told, problem


class Question:
    """What is asked of whom. pinned: the id of a generation; None: what is served now."""

    __slots__ = ("device", "pinned", "url")

    def __init__(self, url: str, device: str | None, pinned: str | None) -> None:
        self.url, self.device, self.pinned = url, device, pinned

    @property
    def about(self) -> str | None:
        """What the cache files it under."""
        return f"id {self.pinned}" if self.pinned else self.device


def refresh(
    question: Question,
    cache: Cache,
    recent: Callable[[Asked | None], bool],
    until: float,
) -> Refreshed:
    """Ask, or learn what another process was just told. Ends at `until`, by the monotonic clock.

    recent: whether an earlier question makes this one needless.
    """
    told: list[Refreshed] = []
    alone, done = Event(), Event()

    def ask() -> None:
        try:
            with cache.lock(question.url, question.about):
                before = cache.asked(question.url, question.about)
                if recent(before):
                    told.append(_of_another(before, cache))
                    if told[-1].told or told[-1].problem:
                        return
                    told.clear()
                if monotonic() < until:
                    alone.set()
                    told.append(_asked(question, cache, before, until))
        except Exception as error:
            # Whatever it is, a program must not fail because it asked.
            told.append(Refreshed(None, None, f"it could not be asked ({type(error).__name__})."))
        finally:
            done.set()

    try:
        Thread(target=ask, name="tuner-client", daemon=True).start()
    except RuntimeError:
        return Refreshed(None, None, f"{question.url} was not asked: no thread can be started.")
    done.wait(max(until - monotonic(), 0.0))
    if told:
        return told[0]
    problem = f"{question.url} did not answer in time."
    if alone.is_set():
        # The next process need not wait for the same.
        before = cache.asked(question.url, question.about)
        cache.note(
            question.url, question.about, Asked(time(), before.id if before else None, problem)
        )
    return Refreshed(None, None, problem)


def _of_another(asked: Asked | None, cache: Cache) -> Refreshed:
    if asked is None or asked.problem:
        return Refreshed(None, None, asked.problem if asked else "")
    return Refreshed(asked.id, cache.snapshot(asked.id) if asked.id else None)


def _asked(question: Question, cache: Cache, before: Asked | None, waited_for: float) -> Refreshed:
    from tuner.client.fetch import Unanswered, fetch

    last = before.id if before else None
    known = cache.snapshot(last) if last else None
    until = monotonic() + GOES_ON_S
    try:
        id, told = fetch(
            question.url, question.device, question.pinned, last if known else None, until
        )
    except Unanswered as error:
        cache.note(question.url, question.about, Asked(time(), last, str(error)))
        return Refreshed(None, None, str(error))
    if told is None:
        told = known
    else:
        if monotonic() < waited_for:
            # Nothing is imported once nobody waits: the program may fork in the middle of that.
            from tuner.client.rules import check

            check(told)
        cache.keep(id, told)
    cache.note(question.url, question.about, Asked(time(), id))
    return Refreshed(id, told)
