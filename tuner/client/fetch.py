"""One request to the service. Whatever answers, it ends in time, with a snapshot or a sentence."""

from __future__ import annotations

import hashlib  # noqa: F401  # so that nothing is imported later, when a program may have forked
import json
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from time import monotonic
from urllib.parse import urlencode, urlsplit

from tuner import __version__
from tuner.client.cache import is_id
from tuner.client.told import Told, Unreadable, id_of, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

MOST_PACKED_BYTES = 32 * 2**20
"""Of a response."""
PIECE_BYTES = 2**16
SHOWN = 200
"""Letters of a server's own explanation that are repeated."""


class Unanswered(Exception):
    """A server gave no snapshot; a sentence says why."""


def fetch(
    url: str, device: str | None, pinned: str | None, known: str | None, until: float
) -> tuple[str, Told | None]:
    """The id of what a server serves, and the snapshot; None for the one that is `known`.

    pinned: the id to ask for; None: what is served now. until: by the monotonic clock.
    Raises: Unanswered.
    """
    try:
        return _fetched(url, device, pinned, known, until)
    except Unanswered:
        raise
    except Unreadable as error:
        raise Unanswered(f"{url} sent no snapshot: {error}") from None
    except TimeoutError:
        raise Unanswered(f"{url} did not answer in time.") from None
    except (OSError, HTTPException, ValueError) as error:
        late = " in time" if monotonic() >= until else ""
        said = str(error)[:SHOWN] or type(error).__name__
        raise Unanswered(f"{url} did not answer{late} ({said}).") from None


def _fetched(
    url: str, device: str | None, pinned: str | None, known: str | None, until: float
) -> tuple[str, Told | None]:
    parts = urlsplit(url)
    if not parts.hostname:
        raise Unanswered(f"{url} names no server.")
    secure = parts.scheme == "https"
    kind = HTTPSConnection if secure else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=max(until - monotonic(), 0.01))
    asked = {"device": None if pinned else device, "id": pinned}
    query = urlencode({name: value for name, value in asked.items() if value})
    headers = {"Accept-Encoding": "gzip", "User-Agent": f"gemm-tuner/{__version__}"}
    if known:
        headers["If-None-Match"] = f'"{known}"'
    try:
        connection.connect()
        # A server that sends a letter now and then never lets a read run into its time limit.
        ending = Timer(max(until - monotonic(), 0.01), _end, [connection.sock])
        ending.daemon = True
        ending.start()
        try:
            connection.request("GET", f"{parts.path}/snapshot?{query}".rstrip("?"), headers=headers)
            return _read(url, connection.getresponse(), device, pinned, known, until)
        finally:
            ending.cancel()
    finally:
        connection.close()


def _end(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(2)  # in both directions


def _read(
    url: str,
    response: HTTPResponse,
    device: str | None,
    pinned: str | None,
    known: str | None,
    until: float,
) -> tuple[str, Told | None]:
    if response.status == 304 and known:
        return known, None
    if 300 <= response.status < 400:
        where = (response.getheader("Location") or "nowhere")[:SHOWN]
        raise Unanswered(
            f"{url} answered {response.status} and names {where!a}, which is not asked."
        )
    kind = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
    body = _body(url, response, until)
    if response.status != 200:
        raise Unanswered(f"{url} answered {response.status}{_explained(kind, body)}.")
    if kind and kind != "application/json":
        raise Unanswered(f"{url} answered with {kind[:SHOWN]!a}, which is no snapshot.")
    body = unpacked(body)
    id = id_of(body)
    tag = (response.getheader("ETag") or "").removeprefix("W/").strip('"').removesuffix("-gzip")
    for named in (pinned, tag if is_id(tag) else None):
        if named and named != id:
            raise Unanswered(f"{url} sent other bytes than those of {named[:16]}.")
    told = Told(body, checked=False)
    if device is not None and told.device_key != device:
        raise Unanswered(f"{url} sent a snapshot of {told.device_key[:40]!a}, not of {device!a}.")
    return id, told


def _body(url: str, response: HTTPResponse, until: float) -> bytes:
    pieces, size = [], 0
    while piece := response.read1(PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_PACKED_BYTES:
            raise Unanswered(f"{url} sent more than {MOST_PACKED_BYTES} B.")
        if monotonic() >= until:
            raise TimeoutError
    return b"".join(pieces)


def _explained(kind: str, body: bytes) -> str:
    """What a problem document of the service says."""
    if kind != "application/problem+json":
        return f" with {kind[:SHOWN]!a}" if kind else ""
    with suppress(ValueError, AttributeError, Unreadable, RecursionError):
        detail = str(json.loads(unpacked(body)).get("detail") or "")[:SHOWN]
        return f": {detail}".rstrip(".")
    return ""
