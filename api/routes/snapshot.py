"""All best configs of a device, as they were published."""

import gzip
import re
from collections import OrderedDict
from http import HTTPStatus
from threading import Lock
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from fastapi import Query as QueryParameters
from fastapi.responses import Response
from pydantic import Field

from tuner.api.lookups import Lookups
from tuner.api.problem_details import ApiError, documented
from tuner.api.reader import StoreHandle, choose_device
from tuner.api.schemas import DeviceKey, Query, refuse_repeats
from tuner.api.view import Published, View
from tuner.store.generations import Generations, NoSuchGeneration

router = APIRouter(tags=["configs"])
MOST_PINNED = 4
"""Older generations that are kept in memory."""
FOR_EVER = "public, max-age=31536000, immutable"


class SnapshotQuery(Query):
    """Which snapshot."""

    device: DeviceKey = None
    id: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="An older generation, by its whole id. Left out: what the device serves now.",
    )


class Pinned:
    """Generations that were asked for by id; for several threads."""

    def __init__(self, store: StoreHandle) -> None:
        self._store, self._lock = store, Lock()
        self._kept: OrderedDict[str, Published] = OrderedDict()

    def find(self, id: str, view: View) -> Published:
        """Raises: ApiError, 404, if there is none; StoreError."""
        served = next((one for one in view.published.values() if one.id == id), None)
        with self._lock:
            found = served or self._kept.get(id)
        if found is None:
            try:
                snapshot = Generations(self._store.repository()).snapshot(id)
            except NoSuchGeneration:
                detail = f"There is no generation {id}."
                raise ApiError(HTTPStatus.NOT_FOUND, detail, state="unknown_generation") from None
            found = Published(id, gzip.compress(snapshot.body, mtime=0))
        with self._lock:
            self._kept[id] = found
            self._kept.move_to_end(id)
            while len(self._kept) > MOST_PINNED:
                self._kept.popitem(last=False)
        return found


@router.get(
    "/snapshot",
    dependencies=[Depends(refuse_repeats)],
    response_class=Response,
    responses={
        200: {
            "description": "The snapshot; its ETag is its id.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: {"description": "The client has it."},
        **documented(
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.NOT_FOUND,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    },
)
def snapshot(
    request: Request,
    query: Annotated[SnapshotQuery, QueryParameters()],
    if_none_match: Annotated[str, Header()] = "",
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """What a device serves, as one file: immutable, and named by the hash of its bytes.

    `id` pins a generation. Compressed with gzip if `Accept-Encoding` allows that.
    """
    lookups: Lookups = request.app.state.lookups
    pinned: Pinned = request.app.state.pinned
    if query.id is not None:
        found = pinned.find(query.id, lookups.view)
    else:
        found = served_now(lookups.view, query.device, request.app.state.store)
    zipped = accepts_gzip(accept_encoding)
    headers = {
        # Other bytes need another tag.
        "ETag": f'"{found.id}-gzip"' if zipped else f'"{found.id}"',
        "Cache-Control": FOR_EVER if query.id else "no-cache",
        "Vary": "Accept-Encoding",
    }
    if has_it(if_none_match, found.id):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if zipped:
        headers["Content-Encoding"] = "gzip"
    body = found.gzipped if zipped else gzip.decompress(found.gzipped)
    return Response(body, media_type="application/json", headers=headers)


def served_now(view: View, key: str | None, store: StoreHandle) -> Published:
    """Raises: ApiError if there is nothing, or nobody can tell of which device."""
    stored = view.stored if view.whole else store.repository().devices()
    device = choose_device(stored, key)
    found = view.published.get(device.key) if device else None
    if found is None:
        what = f"{device.name} ({device.key})" if device else "any device"
        detail = f"Nothing is published for {what}. Do so with `tuner publish`."
        raise ApiError(HTTPStatus.NOT_FOUND, detail, state="never_published")
    return found


def accepts_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "x-gzip", "*"):
            return re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return False


def has_it(if_none_match: str, id: str) -> bool:
    """Whether a client names a generation that it has, however that was encoded."""
    tags = (tag.strip().removeprefix("W/").strip('"') for tag in if_none_match.split(","))
    return any(tag == "*" or tag.removesuffix("-gzip") == id for tag in tags)
