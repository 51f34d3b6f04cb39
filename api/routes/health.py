"""Is the service alive, and does it follow its database?"""

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from tuner import __version__
from tuner.api.follower import Follower
from tuner.api.problem_details import documented, respond

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class Readiness(Health):
    """The service answers, and is in step with its database."""

    database: Literal["ok"] = "ok"
    snapshot_age_s: float = Field(
        description="Seconds since the answers in memory were in step with the database."
    )


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; the database is not asked."""
    # `async`, so that it needs no thread: all of them may be waiting for the database.
    return Health()


@router.get(
    "/readyz",
    response_model=Readiness,
    responses=documented(HTTPStatus.SERVICE_UNAVAILABLE, limited=False),
)
async def readyz(request: Request) -> JSONResponse:
    """All that is stored is in memory, and the database answers.

    503 tells how old the answers are. What is in memory is served all the same.
    """
    follower: Follower = request.app.state.follower
    age = follower.age_s
    told = None if age is None else round(age, 3)
    if follower.failure is not None:
        served = "" if told is None else f" Answers are served as they were {told:.1f} s ago."
        return respond(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{follower.failure}{served}",
            database="unavailable",
            snapshot_age_s=told,
        )
    if told is None or not follower.view.whole:
        detail = f"Answers are still being read; {follower.due} problems are left."
        return respond(HTTPStatus.SERVICE_UNAVAILABLE, detail, database="ok", snapshot_age_s=told)
    return JSONResponse(Readiness(snapshot_age_s=told).model_dump())
