"""The page at `/`: what is tuned, what was missed, and what is being done about it."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameters
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import Field

from tuner import __version__
from tuner.api.extents import whole_number
from tuner.api.follower import Follower
from tuner.api.miss_counter import MissCounter
from tuner.api.overview import (
    BAR_WIDTH,
    Order,
    ago,
    bar,
    digits,
    shapes_of,
    table,
)
from tuner.api.reader import StoreHandle
from tuner.api.schemas import DeviceKey, Query, refuse_repeats
from tuner.api.view import View
from tuner.errors import StoreError
from tuner.lookup.book import Book
from tuner.shape import MAX_EXTENT
from tuner.store.job_rows import Job
from tuner.store.jobs import Jobs
from tuner.store.misses import Missed, Misses
from tuner.store.repository import StoredDevice

router = APIRouter(include_in_schema=False)

PAGE = 50
"""Shapes on one page."""
SHOWN = 12
"""Misses and jobs that are shown; the rest is counted."""

_templates = Environment(
    loader=PackageLoader("tuner.api"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"ago": ago, "digits": digits}
_templates.globals |= {"bar": bar, "bar_width": BAR_WIDTH, "version": __version__}
_STYLE = _templates.get_template("overview.css").render()
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    # The page has no script, and one sheet of style, which is part of it.
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
}


class OverviewQuery(Query):
    """Which shapes to show."""

    device: DeviceKey = None
    q: Annotated[str, Field(max_length=40, description="Part of `MxNxK`.")] = ""
    order: Order = "shape"
    offset: Annotated[int, Field(ge=0, le=MAX_EXTENT), whole_number(0, MAX_EXTENT)] = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What only the database knows: misses and jobs."""

    missed: Sequence[Missed] = ()
    missed_shapes: int = 0
    missed_look_ups: int = 0
    jobs: Sequence[Job] = ()
    running: int = 0
    queued: int = 0


@router.get("/", response_class=HTMLResponse, dependencies=[Depends(refuse_repeats)])
def overview(request: Request, query: Annotated[OverviewQuery, QueryParameters()]) -> HTMLResponse:
    """Shapes with their speed over both libraries, misses, devices and running work.

    Shapes are shown as the service answers them, also while the database is gone.
    """
    follower: Follower = request.app.state.follower
    view = follower.view
    device = _chosen(view, query.device)
    book = view.books.get(device.key) if device else None
    rows, summary = shapes_of(book or Book("", ""))
    work, failure = Work(), None
    try:
        work = _work(request.app.state.store, request.app.state.misses, device)
    except StoreError as error:
        failure = str(error)
    published = view.published.get(device.key) if device else None
    page = _templates.get_template("overview.html").render(
        style=_STYLE,
        devices=view.stored,
        device=device,
        unknown=query.device if query.device and device is None else None,
        summary=summary,
        shapes=table(rows, query.q, query.order, query.offset, PAGE),
        page_size=PAGE,
        query=query,
        work=work,
        failure=failure,
        age_s=follower.age_s,
        whole=view.whole,
        generation=published.id if published else None,
    )
    status = HTTPStatus.NOT_FOUND if query.device and device is None else HTTPStatus.OK
    return HTMLResponse(page, status, HEADERS)


def _chosen(view: View, key: str | None) -> StoredDevice | None:
    """The device named, or the one that most is known of."""
    if key is not None:
        return view.devices.get(key)
    return max(view.stored, key=lambda device: device.shapes, default=None)


def _work(store: StoreHandle, counter: MissCounter, device: StoredDevice | None) -> Work:
    """Raises: StoreError."""
    if device is None:
        return Work()
    counter.flush()
    repository = store.repository()
    misses, jobs = Misses(repository), Jobs(repository)
    shapes, look_ups = misses.totals(device.key)
    running, queued = jobs.counts()
    return Work(
        missed=misses.ranked(device.key, limit=SHOWN),
        missed_shapes=shapes,
        missed_look_ups=look_ups,
        jobs=[*jobs.unended(SHOWN), *jobs.ended(SHOWN // 2)],
        running=running,
        queued=queued,
    )
