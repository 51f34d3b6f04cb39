"""A question, answered from the view or, until that is whole, from the database."""

from collections.abc import Callable
from http import HTTPStatus
from threading import Lock
from typing import Any

from fastapi.exceptions import RequestValidationError

from tuner.api.follower import Follower
from tuner.api.miss_counter import MissCounter
from tuner.api.problem_details import ApiError
from tuner.api.question import Question
from tuner.api.reader import StoreHandle, choose_device
from tuner.api.view import View
from tuner.lookup import Answer, Miss, find, nothing_stored, why_none
from tuner.shape import Problem
from tuner.store.best_answers import REFUSED
from tuner.store.repository import StoredDevice


class Lookups:
    """Answers questions, and counts them: those too that nothing was measured for."""

    def __init__(
        self,
        store: StoreHandle,
        follower: Follower,
        misses: MissCounter,
        served: Callable[[str], None],
    ) -> None:
        """served: hears the tier of every answer."""
        self._store, self._follower, self._misses = store, follower, misses
        self.served = served
        # What nothing was measured for takes milliseconds to work out; many threads at it would
        # keep the ready answers waiting.
        self._working_out = Lock()

    @property
    def view(self) -> View:
        return self._follower.view

    def answer(self, question: Question) -> Answer:
        """As `look_up`; a miss is an ApiError too."""
        found = self.look_up(question)
        if isinstance(found, Miss):
            raise ApiError(HTTPStatus.NOT_FOUND, found.detail, **extensions(found))
        return found

    def look_up(self, question: Question) -> Answer | Miss:
        """Raises: ApiError where no device can be chosen, RequestValidationError for more
        multiprocessors than there are, StoreError until the view is whole."""
        view = self.view
        device = self.device(view, question)
        if device is None:
            return nothing_stored(question.shape)
        if question.sms is not None and question.sms > device.sms:
            raise sms_beyond(question.sms, device.sms)
        problem = question.problem(device)
        if view.whole:
            found = self.find(view, problem, device.key, question)
        else:
            found = self._from_store(view, problem, device, question)
        self.count(found, problem, device.key)
        return found

    def find(
        self, view: View, problem: Problem, device_key: str, question: Question
    ) -> Answer | Miss:
        """What the view says of a problem, not counted."""
        if answer := measured(view, problem, device_key, question):
            return answer
        with self._working_out:
            return find(
                problem,
                view.books,
                device_key=device_key,
                match=question.match,
                protocol=question.protocol,
                numerics=question.numerics,
                plain=question.plain,
            )

    def count(self, found: Answer | Miss, problem: Problem, device_key: str) -> None:
        """Note that a question was answered so."""
        if isinstance(found, Miss):
            self._misses.count(problem, device_key, "none")
            return
        self.served(found.match.tier)
        if found.match.tier != "exact":
            expected = found.confidence.expected_regret
            regret = expected.mean if expected else None
            self._misses.count(problem, device_key, found.match.tier, regret)

    def device(self, view: View, question: Question) -> StoredDevice | None:
        """Raises: as `choose_device`."""
        stored = view.stored if view.whole else self._store.repository().devices()
        return choose_device(stored, question.device, or_like=question.match == "any")

    def _from_store(
        self, view: View, problem: Problem, device: StoredDevice, question: Question
    ) -> Answer | Miss:
        """Measured answers are as good as ever; others come from what was read so far."""
        repository = self._store.repository()
        asked = (problem, device.key, question.protocol, view.current)
        plain, numerics = question.plain, question.numerics
        if answer := repository.best(*asked, plain=plain, numerics=numerics):
            return answer
        outcome = repository.latest_outcome(problem, device.key)
        if question.match == "exact" or (outcome and outcome.state in REFUSED):
            return why_none(problem, device.name, outcome, plain=plain, numerics=numerics)
        return self.find(view, problem, device.key, question)


def measured(view: View, problem: Problem, device_key: str, question: Question) -> Answer | None:
    """The exact answer, if there is one."""
    book = view.books.get(device_key)
    return book.exact(problem, question.terms) if book else None


def extensions(miss: Miss) -> dict[str, Any]:
    """What a problem document tells of a miss, beside its sentence."""
    return {"state": miss.state, "counts": miss.counts}


def sms_beyond(given: int, limit: int) -> RequestValidationError:
    """The refusal of more multiprocessors than the device has."""
    allowed = f"a whole number from 1 to {limit}, the multiprocessors of the device"
    context = {"allowed": allowed}
    return RequestValidationError(
        [{"type": "sms", "loc": ("query", "sms"), "msg": allowed, "ctx": context, "input": given}]
    )
