"""Many look-ups in one request."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tuner.api.lookups import Lookups, extensions
from tuner.api.problem_details import ProblemDetails, documented, problem
from tuner.api.question import Question
from tuner.api.routes.runs import MOST_SHAPES, AskedShape, Number, few_shapes
from tuner.api.schemas import BestConfig, DeviceKey, Protocol, Shape
from tuner.lookup import Answer, Miss, Numerics
from tuner.shape import GemmShape

router = APIRouter(tags=["configs"])


class BestConfigsRequest(BaseModel):
    """Shapes, and what is asked of all of them; see /best-config."""

    model_config = ConfigDict(extra="forbid")

    shapes: Annotated[
        list[AskedShape],
        Field(min_length=1, max_length=MOST_SHAPES),
        BeforeValidator(few_shapes),
    ]
    dtype: Literal["bf16"] = "bf16"
    layout: Literal["tn"] = "tn"
    d: Literal["row", "col"] = "row"
    device: DeviceKey = None
    sms: Number | None = None
    protocol: Protocol | None = None
    numerics: Numerics | None = None
    launch: Literal["any", "plain"] = "any"
    match: Literal["any", "exact"] = "any"

    def question(self, shape: AskedShape) -> Question:
        rest = self.model_dump(exclude={"shapes"})
        return Question(GemmShape(shape.m, shape.n, shape.k), **rest)


class Result(BaseModel):
    """What /best-config says of one shape: `answer` or, where there is none, `problem`."""

    model_config = ConfigDict(extra="forbid")

    shape: Shape
    answer: BestConfig | None
    problem: ProblemDetails | None


class BestConfigs(BaseModel):
    """In the order of the shapes that were asked for."""

    results: list[Result]


@router.post(
    "/best-configs",
    response_model=BestConfigs,
    responses=documented(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
def best_configs(request: Request, body: BestConfigsRequest) -> JSONResponse:
    """The best configs of many shapes on one device, on the same terms.

    A shape without an answer does not keep the others from theirs.
    """
    lookups: Lookups = request.app.state.lookups
    results = [result(shape, lookups.look_up(body.question(shape))) for shape in body.shapes]
    return JSONResponse({"results": results})


def result(shape: AskedShape, found: Answer | Miss) -> dict[str, Any]:
    told: dict[str, Any] = {"shape": shape.model_dump(), "answer": None, "problem": None}
    if isinstance(found, Miss):
        told["problem"] = problem(HTTPStatus.NOT_FOUND, found.detail, **extensions(found))
    else:
        told["answer"] = found.to_json()
    return told
