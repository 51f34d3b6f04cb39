"""How much one client may ask, and how much all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from time import time

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.problem_details import respond
from tuner.errors import InvalidSetting

BODY_BYTES = 2**20
"""The longest body of a request; a thousand shapes take a twentieth of it."""
RATE = "1200/minute"
"""Requests of one client address to one process of the service."""
AT_ONCE = 400
"""Requests that are being answered or wait for a thread; more are sent away at once."""
ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
"""What watches the service is answered however busy that is."""
UNLIMITED = ALWAYS | {"/best-config"}
"""A cluster that starts up asks these from one address, and should. Look-ups that come as far as
here, because they are not ready to be sent, count among the requests that are being answered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """rate: as the package `limits` reads it, such as `10/second`; None for no limit."""

    rate: str | None = RATE
    body_bytes: int = BODY_BYTES
    at_once: int = AT_ONCE

    @classmethod
    def of(cls, rate: str | None) -> "Limits":
        """rate: None for the default, `off` for none. Raises: InvalidSetting."""
        if rate is None:
            return cls()
        if rate == "off":
            return cls(rate=None)
        try:
            parse(rate)
        except ValueError:
            raise InvalidSetting(
                f"TUNER_RATE_LIMIT must be like `10/second` or `600/minute`, or `off`; {rate!a} is "
                "not. Correct it."
            ) from None
        return cls(rate=rate)


class LimitRequests:
    """ASGI: refuses bodies that say they are too long, 413, and who asks too much, 429 and 503."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._rate = parse(limits.rate) if limits.rate else None
        self._rates = FixedWindowRateLimiter(MemoryStorage())
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            status, detail, headers = refusal
            await respond(status, detail, headers)(scope, receive, send)
            return
        self._now += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now -= 1

    def _refusal(self, scope: Scope) -> tuple[HTTPStatus, str, Mapping[str, str]] | None:
        if self._now >= self._limits.at_once:
            detail = "The service has as many requests as it can take; ask again in a second."
            return HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": "1"}
        if self._announced_bytes(scope) > self._limits.body_bytes:
            detail = (
                f"A body may have at most {self._limits.body_bytes} bytes; send less at a time."
            )
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"}
        rate, client = self._rate, scope.get("client")
        who = client[0] if client else ""
        if rate is None or scope["path"] in UNLIMITED or self._rates.hit(rate, who):
            return None
        wait = max(1, ceil(self._rates.get_window_stats(rate, who).reset_time - time()))
        detail = f"One client may make {rate} requests; ask again in {wait} s."
        return HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": str(wait)}

    @staticmethod
    def _announced_bytes(scope: Scope) -> int:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value[:20])
        return 0
