"""What every request gets: an id, a line in the log, and headers that keep browsers careful."""

import logging
import re
from contextvars import ContextVar
from itertools import count
from secrets import token_hex
from time import perf_counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STANDARD_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
PAGE_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A page of our own runs no script."""
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; "
    "style-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net https://fonts.googleapis.com; "
    "font-src https://fonts.gstatic.com; img-src 'self' data: https://fastapi.tiangolo.com "
    "https://cdn.redoc.ly; worker-src blob:; connect-src 'self'; frame-ancestors 'none'"
)
"""FastAPI's /docs and /redoc load their scripts from elsewhere."""

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROCESS = token_hex(6)
_numbers = count(1)
current_id: ContextVar[str] = ContextVar("request_id", default="")
log = logging.getLogger("tuner.api.requests")


def request_id(scope: Scope) -> bytes:
    """The id that the client or a proxy gave the request, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GIVEN.fullmatch(value):
            return bytes(value)
    return f"{_PROCESS}-{next(_numbers):x}".encode()


class RequestContext:
    """ASGI: see the module. Bodies and headers of a request are never logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = request_id(scope)
        # Kept to the end of the request's task, for what the server logs of it.
        current_id.set(id.decode())
        began, status = perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                add_headers(message, scope["path"], id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            client = scope.get("client")
            log.info(
                "%s %s %d",
                scope["method"],
                scope["path"][:200],
                status,
                extra={
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "query": scope["query_string"][:500].decode("latin-1"),
                    "status": status,
                    "ms": round((perf_counter() - began) * 1e3, 3),
                    "client": client[0] if client else None,
                },
            )


def add_headers(message: Message, path: str, id: bytes) -> None:
    """Complete the headers of a response; what a route set itself stays."""
    headers = MutableHeaders(raw=message["headers"])
    if headers.get("content-type", "").startswith("text/html"):
        docs = path.startswith(("/docs", "/redoc"))
        headers.setdefault("content-security-policy", DOCS_POLICY if docs else PAGE_POLICY)
    for name, value in STANDARD_HEADERS:
        headers.setdefault(name.decode(), value.decode())
    headers["x-request-id"] = id.decode()
    message["headers"] = headers.raw
