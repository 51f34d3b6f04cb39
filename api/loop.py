"""The part of the service that closes the loop: misses, runs, and the page that shows them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool

from tuner.api.miss_counter import MissCounter
from tuner.api.reader import StoreHandle
from tuner.api.routes import misses, overview, runs


def include(app: FastAPI, api_token: str | None = None) -> None:
    """Add the routes to `app`, and `app.state.misses`, a MissCounter that lives as long as it.

    `app.state.store` must be set, and `app.state.follower` at the first request. api_token: what
    `POST /runs` asks for; None refuses them all.
    """
    store: StoreHandle = app.state.store
    app.state.misses = MissCounter(store.repository)
    app.state.api_token = api_token
    # Merged with the app's own lifespan and left before it, while the store is still open.
    together = APIRouter(lifespan=counting_misses)
    for noun in (misses, runs, overview):
        together.include_router(noun.router)
    app.include_router(together)


@asynccontextmanager
async def counting_misses(app: FastAPI) -> AsyncIterator[None]:
    """Flush misses in the background, and what is left at the end."""
    counter: MissCounter = app.state.misses
    counter.__enter__()
    try:
        yield
    finally:
        # Joins a thread and waits for the database.
        await run_in_threadpool(counter.__exit__, None, None, None)
