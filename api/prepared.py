"""Answers as bytes that are ready to send: most look-ups are a repeat of one before them.

A query string that is well formed in the plainest way, and whose answer is known, is answered here.
Everything else goes the way of every request, which also says what is wrong with it.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.lookups import Lookups, measured
from tuner.api.problem_details import ApiError
from tuner.api.question import Question, read_question
from tuner.api.request_context import STANDARD_HEADERS, request_id
from tuner.api.view import View
from tuner.lookup import Answer
from tuner.shape import Problem

T = TypeVar("T")
log = logging.getLogger(__name__)
PATH = "/best-config"
MOST_KEPT = 50_000
"""Query strings that are remembered before all are forgotten."""
BORROWED_S = 10.0
"""For how long an answer is kept that was not measured for its problem, before it is worked out
anew. One that was measured in between takes its place at once."""
REST = 3
"""How much longer than working out an answer anew the pause after it is."""


@dataclass(frozen=True, slots=True)
class Ready:
    """One response, but for the id of the request."""

    answer: Answer
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class _Borrowed:
    """An answer that was not measured for its problem. until: in monotonic seconds."""

    question: Question
    ready: Ready
    until: float


class PreparedAnswers:
    """`ready` is for the event loop, `answer` for threads."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._view = View()
        self._of_view: dict[bytes, Ready] = {}
        self._made: dict[bytes, Ready] = {}
        self._questions: dict[bytes, Question | None] = {}
        self._borrowed: dict[bytes, _Borrowed] = {}
        self._renewing = ThreadPoolExecutor(1, "renewing")

    def close(self) -> None:
        """Ends what is worked out anew, and waits for it."""
        self._renewing.shutdown(cancel_futures=True)

    def ready(self, query: bytes) -> Ready | None:
        """The response to a query string; None if it takes more than looking it up."""
        view = self._lookups.view
        if view is not self._view:
            self._view, self._of_view = view, {}
        found = self._of_view.get(query)
        if found is not None:
            self._lookups.served("exact")
            return found
        if query not in self._questions:
            _keep(self._questions, query, read_question(query))
        question = self._questions[query]
        if question is None or not view.whole:
            return None
        try:
            device = self._lookups.device(view, question)
        except ApiError:
            return None
        if device is None or (question.sms or 0) > device.sms:
            return None
        problem = question.problem(device)
        answer = measured(view, problem, device.key, question)
        if answer is None:
            book = view.books.get(device.key)
            refused = book is not None and book.refusal(problem) is not None
            return None if refused else self._lent(query, problem, device.key)
        self._lookups.served("exact")
        return self._kept(query, answer)

    def answer(self, question: Question, query: bytes) -> Response:
        """The response to any question. Raises: as `Lookups.answer`."""
        answer = self._lookups.answer(question)
        if answer.match.tier == "exact":
            return JSONResponse(answer.to_json())
        ready = _ready(answer)
        if self._questions.get(query) == question:
            _keep(self._borrowed, query, _Borrowed(question, ready, monotonic() + BORROWED_S))
        return Response(ready.body, media_type=JSONResponse.media_type)

    def _kept(self, query: bytes, answer: Answer) -> Ready:
        made = self._made.get(query)
        if made is None or made.answer is not answer:
            made = _ready(answer)
            _keep(self._made, query, made)
        _keep(self._of_view, query, made)
        return made

    def _lent(self, query: bytes, problem: Problem, device_key: str) -> Ready | None:
        lent = self._borrowed.get(query)
        if lent is None:
            return None
        answer = lent.ready.answer
        if (answer.problem, answer.device_key) != (problem, device_key):
            return None
        if monotonic() >= lent.until:
            lent.until = monotonic() + BORROWED_S  # once is enough
            self._renewing.submit(self._renew, query, lent)
        self._lookups.count(answer, problem, device_key)
        return lent.ready

    def _renew(self, query: bytes, lent: _Borrowed) -> None:
        began, before = monotonic(), lent.ready.answer
        try:
            view = self._lookups.view
            found = self._lookups.find(view, before.problem, before.device_key, lent.question)
        except Exception:
            log.exception("an answer could not be worked out anew")
            found = None
        if not isinstance(found, Answer) or found.match.tier == "exact":
            self._borrowed.pop(query, None)
        elif found != before:
            lent.ready = _ready(found)
        sleep(REST * (monotonic() - began))


class PreparedFirst:
    """ASGI: sends what is ready, before anything else is done about a request."""

    def __init__(self, app: ASGIApp, prepared: PreparedAnswers) -> None:
        self._app, self._prepared = app, prepared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        try:
            ready = self._prepared.ready(scope["query_string"])
        except Exception:
            # Whatever it is, the ordinary way has an answer to it.
            log.exception("an answer could not be prepared")
            ready = None
        if ready is None:
            await self._app(scope, receive, send)
            return
        headers = [*ready.headers, (b"x-request-id", request_id(scope))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ready.body})


def _ready(answer: Answer) -> Ready:
    response = JSONResponse(answer.to_json())
    return Ready(answer, bytes(response.body), (*response.raw_headers, *STANDARD_HEADERS))


def _keep(kept: dict[bytes, T], query: bytes, value: T) -> None:
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[query] = value
