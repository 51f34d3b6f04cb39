"""Shapes that a device has results for."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from tuner.api.problem_details import documented
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import Device, Shape, ShapesQuery, refuse_repeats
from tuner.trial import ShapeOutcome, ShapeState

router = APIRouter(tags=["shapes"])


class TunedShape(Shape):
    """One problem, and how its latest tuning ended."""

    d: str
    sms: int
    state: ShapeState
    source: str
    finished_at: datetime


class Shapes(BaseModel):
    """One page, in order of M, N and K."""

    device: Device | None = Field(description="None while nothing is stored.")
    shapes: list[TunedShape]
    next_offset: int | None = Field(description="Where the next page starts; None on the last.")


@router.get(
    "/shapes",
    dependencies=[Depends(refuse_repeats)],
    responses=documented(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
def shapes(query: Annotated[ShapesQuery, Query()], repository: RepositoryDep) -> Shapes:
    """What was tuned on a device, a page at a time."""
    device = choose_device(repository.devices(), query.device)
    if device is None:
        return Shapes(device=None, shapes=[], next_offset=None)
    found = repository.shapes(device.key, limit=query.limit + 1, offset=query.offset)
    return Shapes(
        device=Device(key=device.key, name=device.name),
        shapes=[tuned_shape(outcome) for outcome in found[: query.limit]],
        next_offset=query.offset + query.limit if len(found) > query.limit else None,
    )


def tuned_shape(outcome: ShapeOutcome) -> TunedShape:
    problem, shape = outcome.problem, outcome.problem.shape
    return TunedShape(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        d=problem.d,
        sms=problem.sms,
        state=outcome.state,
        source=outcome.source,
        finished_at=outcome.finished_at,
    )
