"""The question the service exists for: which config is fastest for this shape?"""

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, NoReturn

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tuner.api.problem_details import ApiError, documented
from tuner.api.reader import RepositoryDep, choose_device
from tuner.api.schemas import BestConfig, BestConfigQuery, refuse_repeats
from tuner.shape import Problem
from tuner.trial import ShapeOutcome, ShapeState

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
    if reason := query.shape.unsupported_reason():
        raise ApiError(HTTPStatus.NOT_FOUND, reason, state="unsupported")
    if device is None:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"Nothing is stored yet, so {query.shape} was never tuned. Tune it with `tuner run`.",
            state="never_tuned",
        )
    if query.sms is not None and query.sms > device.sms:
        raise sms_beyond(query.sms, device.sms)
    problem = Problem(
        query.shape, query.sms or device.sms, dtype=query.dtype, layout=query.layout, d=query.d
    )
    answer = repository.best(problem, device.key, query.protocol, request.app.state.toolchain)
    if answer is None:
        refuse(problem, device.key, repository.latest_outcome(problem, device.key))
    if query.numerics == "invariant" and answer.use != "kernel":
        # A library may change its algorithm, and so the bits of a row, from one M to the next.
        answer = replace(answer, use="kernel", library=None)
    return JSONResponse(answer.to_json())


def refuse(problem: Problem, device_key: str, outcome: ShapeOutcome | None) -> NoReturn:
    """Raises: ApiError saying why there is no answer: how tuning ended, or that it never began."""
    where = f"{problem.shape} (d={problem.d}, {problem.sms} SMs) on {device_key}"
    state, detail = "never_tuned", f"{where} was never tuned. Tune it with `tuner run`."
    counts: Mapping[str, int] | None = None
    if outcome is not None:
        match outcome.state:
            case ShapeState.UNSUPPORTED | ShapeState.DOES_NOT_FIT:
                state, detail = "unsupported", outcome.detail or f"{where} cannot be run."
            case ShapeState.NO_VALID_CONFIG:
                state, counts = "no_valid_config", dict(outcome.counts)
                ended = ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "none tried"
                detail = f"{where} was tuned and no config is fit to serve: {ended}."
    raise ApiError(HTTPStatus.NOT_FOUND, detail, state=state, counts=counts)


def sms_beyond(given: int, limit: int) -> RequestValidationError:
    """The refusal of more multiprocessors than the device has."""
    allowed = f"a whole number from 1 to {limit}, the multiprocessors of the device"
    context = {"allowed": allowed}
    return RequestValidationError(
        [{"type": "sms", "loc": ("query", "sms"), "msg": allowed, "ctx": context, "input": given}]
    )
