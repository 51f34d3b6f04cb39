"""Is the service alive, and can it read its store?"""

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from tuner import __version__
from tuner.api.problem_details import documented
from tuner.api.reader import RepositoryDep

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; the store is not asked."""
    # `async`, so that it needs no thread: all of them may be waiting for the store.
    return Health()


@router.get("/readyz", responses=documented(HTTPStatus.SERVICE_UNAVAILABLE))
def readyz(repository: RepositoryDep) -> Health:
    """The store answers too."""
    repository.devices()
    return Health()
