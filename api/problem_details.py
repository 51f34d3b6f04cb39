"""Errors as `application/problem+json` (RFC 9457), the only form in which the service fails."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from tuner.api.extents import EXTENT_RANGE
from tuner.api.request_context import STANDARD_HEADERS, current_id
from tuner.errors import StoreError
from tuner.lookup import MissState

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
SHOWN_CHARACTERS = 60
SHOWN_ERRORS = 20


class InvalidField(BaseModel):
    """One query parameter that was refused."""

    field: str
    allowed: str = Field(description="The values this parameter accepts.")
    message: str


class KnownDevice(BaseModel):
    """A device that a query can name."""

    key: str
    name: str


class ProblemDetails(BaseModel):
    """Why a request has no answer."""

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    state: MissState | Literal["never_published", "unknown_generation"] | None = Field(
        None, description="404: why there is no answer, or no snapshot."
    )
    counts: dict[str, int] | None = Field(None, description="Attempts by how they ended.")
    devices: list[KnownDevice] | None = Field(None, description="What `device` can be.")
    errors: list[InvalidField] | None = Field(None, description="422: what was refused.")
    database: Literal["ok", "unavailable"] | None = Field(
        None, description="503 of /readyz: whether the database answers."
    )
    snapshot_age_s: float | None = Field(
        None,
        description="503 of /readyz: seconds since the answers were in step with the database.",
    )


class ApiError(Exception):
    """An answer that is a problem; `members` are extension members of ProblemDetails."""

    def __init__(self, status: HTTPStatus, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.members = members


def problem(status: HTTPStatus | int, detail: str, **members: Any) -> dict[str, Any]:
    """The JSON of one problem; members that are None are left out."""
    return ProblemDetails(
        title=HTTPStatus(status).phrase, status=status, detail=detail, **members
    ).model_dump(mode="json", exclude_none=True)


def respond(
    status: HTTPStatus | int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> JSONResponse:
    """One problem as a response."""
    body = problem(status, detail, **members)
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def documented(*statuses: HTTPStatus, limited: bool = True) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of the problems that a route can answer with.

    limited: the route can also be refused because too much is asked.
    """
    schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inlined(schema, schema.pop("$defs", {}))
    content = {MEDIA_TYPE: {"schema": schema}}
    too_much = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) if limited else ()
    told = sorted({*statuses, *too_much})
    return {s.value: {"description": s.phrase, "content": content} for s in told}


def shown(text: str) -> str:
    """`text` quoted for a message, cut to a length that is kind to logs."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


def install(app: FastAPI) -> None:
    """Answer every failure of `app` with a problem."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return respond(error.status, error.detail, **error.members)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        fields = [_invalid_field(e) for e in error.errors()[:SHOWN_ERRORS]]
        detail = " ".join(f.message for f in fields)
        return respond(HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=fields)

    @app.exception_handler(StoreError)
    def store_failed(request: Request, error: StoreError) -> JSONResponse:
        # Not `async`: closing connections may take a while, which is for a thread to wait.
        request.app.state.store.forget()
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        return respond(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers=retry)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        detail = f"{request.method} {shown(request.url.path)}: {error.detail}. See /docs."
        return respond(error.status_code, detail, headers=error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        detail = f"The service failed ({type(error).__name__}); its log says where."
        # This answer is made outside of everything that would add them.
        headers = {name.decode(): value.decode() for name, value in STANDARD_HEADERS}
        headers["X-Request-ID"] = current_id.get()
        return respond(HTTPStatus.INTERNAL_SERVER_ERROR, detail, headers)


def _invalid_field(error: Mapping[str, Any]) -> InvalidField:
    # The first part says where it was: in the query, the path or the body.
    name = ".".join(str(part) for part in error["loc"][1:])
    context: Mapping[str, Any] = error.get("ctx") or {}
    match error["type"]:
        case "missing" if name not in ("m", "n", "k"):
            return InvalidField(field=name, allowed="given", message=f"{name} is missing.")
        case "missing":
            message = f"{name} is missing; give {EXTENT_RANGE}."
            return InvalidField(field=name, allowed=EXTENT_RANGE, message=message)
        case "extra_forbidden":
            message = f"There is no parameter {shown(name)}; /docs lists them."
            return InvalidField(field=name[:SHOWN_CHARACTERS], allowed="absent", message=message)
        case "json_invalid" | "model_attributes_type":
            message = "The body must be a JSON object; /docs describes it."
            return InvalidField(field="body", allowed="a JSON object", message=message)
    allowed = str(context.get("allowed") or context.get("expected") or error["msg"])
    given = shown(str(error["input"]))
    message = f"{name} must be {allowed}; {given} is not."
    return InvalidField(field=name, allowed=allowed, message=message)


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """`node` with references to `definitions` replaced by what they refer to."""
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            return _inlined(definitions[reference.rsplit("/", 1)[-1]], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [_inlined(value, definitions) for value in node]
    return node
