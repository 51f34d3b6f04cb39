"""Assembles the service; starts nothing until the first request."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp

from tuner import __version__
from tuner.api import loop, problem_details
from tuner.api.follower import Follower
from tuner.api.limits import LimitRequests, Limits
from tuner.api.lookups import Lookups
from tuner.api.prepared import PreparedAnswers, PreparedFirst
from tuner.api.reader import StoreHandle
from tuner.api.request_context import RequestContext
from tuner.api.routes import (
    best_config,
    best_configs,
    devices,
    health,
    metrics,
    shapes,
    snapshot,
    trials,
)
from tuner.settings import Settings

SWITCH_S = 5e-4
"""How long a thread may hold the interpreter while others wait; a look-up takes a tenth of it."""
FIRST_VIEW_S = 2.0
"""How long a start waits for the answers, which most databases give within it."""


class Service(FastAPI):
    """Sends the answers that are ready before it does anything else about a request."""

    def build_middleware_stack(self) -> ASGIApp:
        return PreparedFirst(super().build_middleware_stack(), self.state.prepared)


def create_app(
    database_url: str,
    *,
    kernel_hash: str | None = None,
    api_token: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The service over the store at `database_url`.

    kernel_hash: the kernel that answers are judged by, which are stale if they were tuned for
        another; None leaves that to the caller. api_token: what `POST /runs` asks for; None refuses
        them all.
    """
    limits = limits or Limits()
    app = Service(
        title="gemm-tuner",
        version=__version__,
        description="Tuned configurations of a Hopper bf16 GEMM kernel.",
        redirect_slashes=False,
        lifespan=following,
    )
    numbers = metrics.Metrics()
    app.state.store = StoreHandle(database_url)
    app.state.follower = Follower(app.state.store, kernel_hash, numbers.followed)
    problem_details.install(app)
    for noun in (best_config, best_configs, snapshot, shapes, trials, devices, health):
        app.include_router(noun.router)
    loop.include(app, api_token)
    app.state.lookups = Lookups(
        app.state.store, app.state.follower, app.state.misses, numbers.served
    )
    app.state.prepared = PreparedAnswers(app.state.lookups)
    app.state.pinned = snapshot.Pinned(app.state.store)
    # The last one is asked first.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=limits.body_bytes)
    app.add_middleware(LimitRequests, limits=limits)
    metrics.install(app, numbers)
    app.add_middleware(RequestContext)
    return app


@asynccontextmanager
async def following(app: FastAPI) -> AsyncIterator[None]:
    """Follow the database for as long as the server runs, then give its connections back."""
    follower: Follower = app.state.follower
    # Or whoever reads the database or works out an answer would keep look-ups waiting.
    sys.setswitchinterval(SWITCH_S)
    metrics.forget_the_dead()
    follower.start()
    await run_in_threadpool(follower.wait, FIRST_VIEW_S)
    try:
        yield
    finally:
        await run_in_threadpool(app.state.prepared.close)
        await run_in_threadpool(follower.stop)
        app.state.store.forget()


def from_environment() -> FastAPI:
    """The service over the store that the environment names, for servers that take a factory."""
    settings = Settings.from_environment(os.environ)
    return create_app(
        settings.database_url,
        kernel_hash=settings.kernel_hash,
        api_token=settings.api_token,
        limits=Limits.of(settings.rate_limit),
    )
