"""Assembles the service; starts nothing until the first request."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tuner import __version__
from tuner.api import loop, problem_details
from tuner.api.reader import StoreHandle
from tuner.api.routes import best_config, devices, health, shapes
from tuner.settings import Settings
from tuner.trial import Toolchain


def create_app(
    database_url: str, toolchain: Toolchain | None = None, api_token: str | None = None
) -> FastAPI:
    """The service over the store at `database_url`.

    toolchain: the current one, against which answers are marked stale; None leaves that to the
        caller of the service. api_token: what `POST /runs` asks for; None refuses them all.
    """
    app = FastAPI(
        title="gemm-tuner",
        version=__version__,
        description="Tuned configurations of a Hopper bf16 GEMM kernel.",
        redirect_slashes=False,
        lifespan=close_at_the_end,
    )
    app.state.store = StoreHandle(database_url)
    app.state.toolchain = toolchain
    problem_details.install(app)
    for noun in (best_config, shapes, devices, health):
        app.include_router(noun.router)
    loop.include(app, api_token)
    return app


@asynccontextmanager
async def close_at_the_end(app: FastAPI) -> AsyncIterator[None]:
    """Give connections back when the server stops."""
    yield
    app.state.store.forget()


def from_environment() -> FastAPI:
    """The service over the store that the environment names, for servers that take a factory."""
    settings = Settings.from_environment(os.environ)
    return create_app(settings.database_url, api_token=settings.api_token)
