"""Everything that was measured of one shape."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from tuner.api.extents import Extent
from tuner.api.problem_details import documented
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import Device, Shape, ShapesQuery, refuse_repeats
from tuner.shape import GemmShape, Problem
from tuner.trial import Measurement, TrialState

router = APIRouter(tags=["shapes"])


class TrialsQuery(ShapesQuery):
    """One page of what was tried on one problem."""

    m: Extent
    n: Extent
    k: Extent
    d: Literal["row", "col"] = "row"
    sms: Extent | None = Field(None, description="The SM budget; all SMs if left out.")


class Trial(BaseModel):
    """One row: a screening, a failure, or a contender of a race."""

    state: TrialState
    detail: str
    protocol: str
    contender: str = Field(description="`kernel`, `cublas` or `cublaslt`.")
    config: dict[str, Any] | None
    algorithm: str | None = Field(description="Of cuBLASLt, by its attributes.")
    median_us: float | None
    samples: int
    race: str | None = Field(description="What was raced in the same rounds; null outside a race.")
    source: str
    kernel_hash: str
    measured_at: datetime


class Trials(BaseModel):
    """One page, the newest first."""

    device: Device | None = Field(description="None while nothing is stored.")
    shape: Shape
    trials: list[Trial]
    next_offset: int | None = Field(description="Where the next page starts; None on the last.")


@router.get(
    "/trials",
    dependencies=[Depends(refuse_repeats)],
    responses=documented(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
def trials(query: Annotated[TrialsQuery, Query()], repository: RepositoryDep) -> Trials:
    """Every attempt at a shape on a device, failures and screenings too, a page at a time."""
    shape = Shape(m=query.m, n=query.n, k=query.k)
    device = choose_device(repository.devices(), query.device)
    if device is None:
        return Trials(device=None, shape=shape, trials=[], next_offset=None)
    problem = Problem(GemmShape(query.m, query.n, query.k), query.sms or device.sms, d=query.d)
    found = repository.trials(problem, device.key, query.limit + 1, query.offset)
    return Trials(
        device=Device(key=device.key, name=device.name),
        shape=shape,
        trials=[trial(row) for row in found[: query.limit] if row is not None],
        next_offset=query.offset + query.limit if len(found) > query.limit else None,
    )


def trial(row: Measurement) -> Trial:
    config = row.contender.config
    return Trial(
        state=row.state,
        detail=row.detail,
        protocol=row.protocol,
        contender=row.contender.name,
        config=None if config is None else config.to_dict(),
        algorithm=row.contender.algorithm,
        median_us=row.median_us,
        samples=len(row.samples_us),
        race=row.race,
        source=row.source,
        kernel_hash=row.toolchain.kernel_hash,
        measured_at=row.measured_at,
    )
