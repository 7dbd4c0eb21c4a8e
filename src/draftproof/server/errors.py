"""Errors as OpenAI writes them; the one table from ours to statuses of HTTP."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import groupby
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from draftproof.errors import (
    Cancelled,
    DeadlineExceeded,
    DraftproofError,
    IncompatiblePair,
    InvalidPrompt,
    InvalidSetting,
    LimitExceeded,
    MissingExtra,
    Overloaded,
)
from draftproof.server import fields

CLIENT_LEFT = 499
"""Written to the log where nobody is left to read a status."""
RETRY_AFTER_S = 1

_STATUSES: tuple[tuple[type[DraftproofError], int, str], ...] = (
    (InvalidPrompt, 400, "invalid_prompt"),
    (InvalidSetting, 400, "invalid_value"),
    (IncompatiblePair, 400, "incompatible_pair"),
    (MissingExtra, 400, "unsupported_parameter"),
    (LimitExceeded, 400, "limit_exceeded"),
    (Overloaded, 429, "overloaded"),
    (Cancelled, CLIENT_LEFT, "cancelled"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (DraftproofError, 500, "request_failed"),
)
_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_FIELDS = (
    *fields.Request.model_fields,
    "prompt",
    "messages",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
)
_LONGEST_NAME = 64
"""Of fields that somebody may have meant; a longer one takes seconds to compare."""
_BY_FRAMEWORK = {
    400: ("the body is no JSON that can be read", "invalid_json"),
    404: ("there is no {request.url.path} here; /openapi.json lists the routes", "not_found"),
    405: ("{request.url.path} does not take {request.method}", "method_not_allowed"),
}
"""What its bare statuses are told as."""


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    """The field that is to blame."""
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class Refusal(HTTPException):
    """A request ends with this status; `code` and `param` are for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        if status in (429, 503):
            retry_after_s = retry_after_s or RETRY_AFTER_S
        # Whole seconds, and never a zero that means at once.
        headers = (
            {} if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
        )
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    @property
    def known_field(self) -> str | None:
        """The field of a request that is to blame, if it has that name here: names that somebody
        made up are text of theirs."""
        field = (self.param or "").partition(".")[0]
        return field if field in _FIELDS else None

    @property
    def body(self) -> ErrorBody:
        kind = _KINDS.get(self.status_code)
        if kind is None:
            kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        detail = ErrorDetail(message=self.detail, type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail)

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body.model_dump(), self.status_code, self.headers)


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


def refusal(error: Exception) -> Refusal:
    """What a client is told of `error`; of one that nobody foresaw, nothing but that."""
    if isinstance(error, Refusal):
        return error
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return Refusal(
                status, str(error), code, retry_after_s=getattr(error, "retry_after_s", None)
            )
    return Refusal(500, "the server failed on this request; others go on", "internal_error")


async def answer_refusal(request: Request, error: Exception) -> JSONResponse:
    """Statuses that the framework gives, such as 404 and 405, get the same body as ours."""
    assert isinstance(error, HTTPException)
    if not isinstance(error, Refusal):
        said, code = str(error.detail), None
        if error.status_code in _BY_FRAMEWORK:
            form, code = _BY_FRAMEWORK[error.status_code]
            said = form.format(request=request)
        known = Refusal(error.status_code, said, code)
        known.headers = {**(known.headers or {}), **(error.headers or {})}
        error = known
    return _told(request, error)


async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _told(request, _invalid(error.errors()))


def _told(request: Request, error: Refusal) -> JSONResponse:
    """The answer, noted for the log."""
    request.scope["visit"].refused = error
    return error.response


def _invalid(faults: Any) -> Refusal:
    """The first field that cannot be read, with all that is said of it: a union says more."""
    if faults[0]["type"] == "json_invalid":
        said = f"the body is no JSON: {faults[0]['ctx']['error']} at {faults[0]['loc'][1]}"
        return Refusal(400, said, "invalid_json")
    # Which of several forms a value was read as stands there like a field of the same name.
    place = [part for part, _ in groupby(str(part) for part in faults[0]["loc"][1:])]
    if faults[0]["type"] == "value_error":
        said = str(faults[0]["ctx"]["error"])
        return Refusal(400, said, "invalid_value", place[0] if place else None)
    if not place:
        return Refusal(
            400,
            "the body is no JSON object; send one with Content-Type: application/json",
            "invalid_json",
        )
    name = place[-1]
    if faults[0]["type"] == "extra_forbidden":
        param = ".".join(place)
        if name in fields.ASKS_FOR_NOTHING:
            return Refusal(400, f"{param} is not supported", "unsupported_parameter", param)
        near = get_close_matches(name, _FIELDS, 1) if len(name) <= _LONGEST_NAME else ()
        hint = f"; did you mean {near[0]}?" if near else ""
        said = f"{param} is no field of this request{hint}"
        return Refusal(400, said, "unknown_parameter", param)
    same = [fault["msg"] for fault in faults if fault["loc"][1:2] == faults[0]["loc"][1:2]]
    param = ".".join(place) if len(same) == 1 else place[0]
    said = ", or: ".join(dict.fromkeys(same))
    code = "missing_parameter" if faults[0]["type"] == "missing" else "invalid_value"
    return Refusal(400, f"{param}: {said}", code, param)
