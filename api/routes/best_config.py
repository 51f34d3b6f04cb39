"""The question the service exists for: which config is fastest for this shape?"""

from http import HTTPStatus
from typing import Annotated, NoReturn

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tuner.api.problem_details import ApiError, documented
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import BestConfig, BestConfigQuery, refuse_repeats
from tuner.lookup import Miss, nothing_stored, why_none
from tuner.shape import Problem

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
    ),
)
def best_config(
    request: Request, query: Annotated[BestConfigQuery, Query()], repository: RepositoryDep
) -> JSONResponse:
    """The fastest proven config of a shape, how sure that is, and whether a library is faster.

    `use` names what measured fastest: `kernel`, `cublas` or `cublaslt`. A miss is a 404 with
    `state`: `never_tuned`, `no_valid_config`, `unsupported` or `unknown_device`.
    """
    device = choose_device(repository.devices(), query.device)
    if device is None:
        refuse(nothing_stored(query.shape))
    if query.sms is not None and query.sms > device.sms:
        raise sms_beyond(query.sms, device.sms)
    problem = Problem(
        query.shape, query.sms or device.sms, dtype=query.dtype, layout=query.layout, d=query.d
    )
    plain, numerics = query.launch == "plain", query.numerics
    current = request.app.state.toolchain
    answer = repository.best(
        problem, device.key, query.protocol, current, plain=plain, numerics=numerics
    )
    if answer is None:
        outcome = repository.latest_outcome(problem, device.key)
        refuse(why_none(problem, device.name, outcome, plain=plain, numerics=numerics))
    return JSONResponse(answer.to_json())


def refuse(miss: Miss) -> NoReturn:
    """Raises: ApiError saying why there is no answer."""
    raise ApiError(HTTPStatus.NOT_FOUND, miss.detail, state=miss.state, counts=miss.counts)


def sms_beyond(given: int, limit: int) -> RequestValidationError:
    """The refusal of more multiprocessors than the device has."""
    allowed = f"a whole number from 1 to {limit}, the multiprocessors of the device"
    context = {"allowed": allowed}
    return RequestValidationError(
        [{"type": "sms", "loc": ("query", "sms"), "msg": allowed, "ctx": context, "input": given}]
    )
