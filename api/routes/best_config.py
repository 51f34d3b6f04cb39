"""The question the service exists for: which config is fastest for this shape?"""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tuner.api.prepared import PreparedAnswers
from tuner.api.problem_details import documented
from tuner.api.schemas import BestConfig, BestConfigQuery, refuse_repeats

router = APIRouter(tags=["configs"])


@router.get(
    "/best-config",
    response_model=BestConfig,
    dependencies=[Depends(refuse_repeats)],
    responses=documented(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        limited=False,
    ),
)
def best_config(request: Request, query: Annotated[BestConfigQuery, Query()]) -> Response:
    """The best config of a shape, how sure that is, and whether a library is faster.

    `match.tier` says how it was found, `confidence` how sure it is, and `use` names what is
    fastest: `kernel`, `cublas` or `cublaslt`. Without an answer it is a 404 with `state`:
    `never_tuned`, `no_valid_config`, `unsupported` or `unknown_device`.
    """
    prepared: PreparedAnswers = request.app.state.prepared
    return prepared.answer(query.question, request.scope["query_string"])
