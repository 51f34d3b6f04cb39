"""Look-ups that had no exact answer, ranked by what tuning them would save."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameters
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from tuner.api.extents import whole_number
from tuner.api.miss_counter import MissCounter
from tuner.api.problem_details import documented
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import MAX_PAGE, Device, DeviceKey, Query, Shape, refuse_repeats
from tuner.shape import MAX_EXTENT, OutputLayout
from tuner.store.misses import Missed, Misses
from tuner.trial import ShapeState

router = APIRouter(tags=["tuning"])


class MissesQuery(Query):
    """One page of what was missed on a device."""

    device: DeviceKey = None
    d: Literal["row", "col"] | None = Field(
        None, description="Only products with that memory order of D. A shape file is of `row`."
    )
    format: Literal["json", "shapes"] = Field(
        "json", description="`shapes`: a shape file for `tuner run --shapes`, all SMs only."
    )
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE), whole_number(1, MAX_PAGE)] = 100
    offset: Annotated[int, Field(ge=0, le=MAX_EXTENT), whole_number(0, MAX_EXTENT)] = 0


class MissedShape(Shape):
    """One problem that was asked for and is not tuned."""

    d: str
    sms: int
    hits: int = Field(description="Look-ups without an exact answer.")
    tiers: dict[str, int] = Field(description="The same, by the tier that served them.")
    predicted_gain_us: float = Field(
        description="Microseconds that these look-ups' products are expected to lose: for each, "
        "the expected regret of its answer times a roofline time of the product."
    )
    state: ShapeState | None = Field(description="How its latest tuning ended, if it was tried.")
    first_at: datetime
    last_at: datetime


class MissedShapes(BaseModel):
    """One page; what promises most comes first."""

    device: Device | None = Field(description="None while nothing is stored.")
    misses: list[MissedShape]
    next_offset: int | None = Field(description="Where the next page starts; None on the last.")


@router.get(
    "/misses",
    response_model=MissedShapes,
    dependencies=[Depends(refuse_repeats)],
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.NOT_FOUND,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    },
)
def misses(
    request: Request,
    query: Annotated[MissesQuery, QueryParameters()],
    repository: RepositoryDep,
) -> MissedShapes | PlainTextResponse:
    """What was asked for and is not tuned, by look-ups times predicted gain.

    With `format=shapes` the same as a shape file.
    """
    counter: MissCounter = request.app.state.misses
    counter.flush()
    device = choose_device(repository.devices(), query.device, or_like=True)
    as_file = query.format == "shapes"
    found: Sequence[Missed] = ()
    if device is not None:
        found = Misses(repository).ranked(
            device.key,
            limit=query.limit + 1,
            offset=query.offset,
            d=query.d or ("row" if as_file else None),
            sms=device.sms if as_file else None,
        )
    page = found[: query.limit]
    if as_file:
        return PlainTextResponse(shape_file(page, device.key if device else "no device", query.d))
    return MissedShapes(
        device=Device(key=device.key, name=device.name) if device else None,
        misses=[missed_shape(one) for one in page],
        next_offset=query.offset + query.limit if len(found) > query.limit else None,
    )


def missed_shape(missed: Missed) -> MissedShape:
    problem, shape = missed.problem, missed.problem.shape
    return MissedShape(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        d=problem.d,
        sms=problem.sms,
        hits=missed.hits,
        tiers=dict(missed.tiers),
        predicted_gain_us=round(missed.saved_us, 3),
        state=missed.state,
        first_at=missed.first_at,
        last_at=missed.last_at,
    )


def shape_file(missed: Sequence[Missed], device: str, d: OutputLayout | None) -> str:
    """`M N K` a line, with what is known of each as a comment."""
    order = " --d col" if d == "col" else ""
    lines = [f"# Missed on {device}; tune them with: tuner run{order} --shapes FILE"]
    for one in missed:
        shape = one.problem.shape
        tiers = ", ".join(f"{count} {tier}" for tier, count in one.tiers.items())
        lines.append(f"{shape.m} {shape.n} {shape.k}  # {tiers}; {one.saved_us:.1f} us to be saved")
    return "\n".join(lines) + "\n"
