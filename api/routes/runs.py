"""Asking workers to tune: queue shapes, and follow them."""

import hmac
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from tuner.api.problem_details import ApiError, documented, shown
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import Shape
from tuner.shape import MAX_EXTENT, GemmShape, Problem
from tuner.store.job_rows import Job
from tuner.store.jobs import Jobs

router = APIRouter(tags=["tuning"])
MOST_SHAPES = 1000
"""Shapes that one request may queue."""

Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="TUNER_API_TOKEN of the service.")),
]


def number_of(value: object) -> int:
    """A JSON number that is a whole one; text that looks like one is not."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_EXTENT:
        return value
    allowed = f"a whole number from 1 to {MAX_EXTENT}"
    raise PydanticCustomError("whole_number", "not a whole number in range", {"allowed": allowed})


def few_shapes(value: object) -> object:
    """A list that is neither empty nor longer than a request may hold."""
    if isinstance(value, list) and 1 <= len(value) <= MOST_SHAPES:
        return value
    allowed = f"a list of 1 to {MOST_SHAPES} shapes"
    raise PydanticCustomError("shapes", "not a list of shapes", {"allowed": allowed})


Number = Annotated[int, Field(ge=1, le=MAX_EXTENT), BeforeValidator(number_of)]


class AskedShape(BaseModel):
    """Extents of D[M,N] = A[M,K] x B[N,K]^T."""

    model_config = ConfigDict(extra="forbid")

    m: Number
    n: Number
    k: Number


class RunRequest(BaseModel):
    """What is to be tuned."""

    model_config = ConfigDict(extra="forbid")

    shapes: Annotated[
        list[AskedShape],
        Field(min_length=1, max_length=MOST_SHAPES),
        BeforeValidator(few_shapes),
    ]
    device: str | None = Field(
        None, description="Key of a device; may be left out while only one is stored."
    )
    d: Literal["row", "col"] = Field("row", description="Memory order of D.")
    sms: Number | None = Field(
        None, description="Multiprocessors the kernel may use; all of the device if left out."
    )


class QueuedShape(Shape):
    """One shape of a run, and how far it is."""

    d: str
    sms: int
    state: str = Field(
        description="`queued`, `running` or, at its end, `tuned`, `no_valid_config`, "
        "`unsupported`, `does_not_fit`, `not_recorded` or `failed` (workers gave it up)."
    )
    detail: str = Field(description="Why it ended without a config.")
    worker: str | None = Field(description="Who tunes it, or did last.")
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class Run(BaseModel):
    """Shapes that were asked for together."""

    id: str
    device: str = Field(description="Key of the device they are tuned on.")
    state: Literal["queued", "running", "done"]
    counts: dict[str, int] = Field(description="Shapes by state.")
    shapes: list[QueuedShape]


def require_token(request: Request, credentials: Credentials) -> None:
    """Raises: ApiError, 403 where the service has no token and 401 for another one."""
    token: str | None = request.app.state.api_token
    if token is None:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "This service takes no runs, because it was started without a token. Set "
            "TUNER_API_TOKEN where it runs, or use `tuner run`.",
        )
    given = credentials.credentials if credentials else ""
    # Takes as long for a token that is wrong in its first letter as for one wrong in its last.
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            "Send the service's token: `Authorization: Bearer TOKEN`.",
            headers={"WWW-Authenticate": "Bearer"},
        )


@router.post(
    "/runs",
    status_code=HTTPStatus.ACCEPTED,
    dependencies=[Depends(require_token)],
    responses=documented(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
def ask(body: RunRequest, repository: RepositoryDep, response: Response) -> Run:
    """Queue shapes for the workers of a device; `Location` says where to follow them.

    A worker ends a shape that is tuned already without tuning it, and one that the kernel cannot
    run with the reason.
    """
    device = choose_device(repository.devices(), body.device)
    if device is None:
        detail = "No device is known yet. Start `tuner worker` on a machine with a GPU first."
        raise ApiError(HTTPStatus.NOT_FOUND, detail, state="unknown_device", devices=[])
    if body.sms is not None and body.sms > device.sms:
        raise sms_beyond(body.sms, device.sms)
    sms = body.sms or device.sms
    asked = [Problem(GemmShape(s.m, s.n, s.k), sms, d=body.d) for s in body.shapes]
    jobs = Jobs(repository)
    run_id = jobs.ask(asked, device.key)
    response.headers["Location"] = f"/runs/{run_id}"
    return told(jobs.of_run(run_id))


@router.get(
    "/runs/{run_id}",
    dependencies=[Depends(require_token)],
    responses=documented(
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
def follow(run_id: str, repository: RepositoryDep) -> Run:
    """How far the shapes of a run are."""
    found = Jobs(repository).of_run(run_id)
    if not found:
        raise ApiError(HTTPStatus.NOT_FOUND, f"There is no run {shown(run_id)}.")
    return told(found)


def told(jobs: Sequence[Job]) -> Run:
    """A run from its jobs, of which there is at least one."""
    ended = sum(job.ended_at is not None for job in jobs)
    begun = ended or any(job.state == "running" for job in jobs)
    return Run(
        id=jobs[0].run_id,
        device=jobs[0].device_key,
        state="done" if ended == len(jobs) else "running" if begun else "queued",
        counts=Counter(job.state for job in jobs),
        shapes=[queued_shape(job) for job in jobs],
    )


def queued_shape(job: Job) -> QueuedShape:
    problem, shape = job.problem, job.problem.shape
    return QueuedShape(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        d=problem.d,
        sms=problem.sms,
        state=job.state,
        detail=job.detail,
        worker=job.worker,
        asked_at=job.asked_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
    )


def sms_beyond(given: int, limit: int) -> RequestValidationError:
    """The refusal of more multiprocessors than the device has."""
    allowed = f"a whole number from 1 to {limit}, the multiprocessors of the device"
    context = {"allowed": allowed}
    return RequestValidationError(
        [{"type": "sms", "loc": ("body", "sms"), "msg": allowed, "ctx": context, "input": given}]
    )
