"""Errors as HTTP problem details (RFC 9457), with one table of codes and statuses."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from torchloom.errors import LoomError, UserError, shorten
from torchloom.server.schema import Schema

MEDIA = "application/problem+json"
BODY = "body"  # the field that is named when the whole of what was sent is wrong
_RETRY = {"Retry-After": "1"}
_LONGEST = 600  # letters of a sentence

STATUS: Mapping[str, int] = {
    "link_unknown": 401,
    "link_over": 401,
    "not_found": 404,
    "no_job": 404,
    "aborted": 409,
    "already_complete": 409,
    "ambiguous": 409,
    "checkpoint_needed": 409,
    "ended_meanwhile": 409,
    "job_moved": 409,
    "job_over": 409,
    "key_reused": 409,
    "last_admin": 409,
    "link_used": 409,
    "no_checkpoint": 409,
    "no_knobs": 409,
    "nothing_to_undo": 409,
    "refused": 409,
    "unschedulable": 409,
    "too_many_logins": 429,
    "internal": 500,
    "weaver_away": 503,
    "state_lost": 503,
    "records_lost": 503,
    "superseded": 503,
    "database_unreachable": 503,
    "database_damaged": 503,
    "schema_newer": 503,
}
WORDS: Mapping[int, str] = {
    400: "The request cannot be parsed.",
    401: "No token, or an unknown one.",
    403: "The user's role does not allow it, or the request comes from another origin.",
    404: "Nothing has this name.",
    405: "The path does not support this method.",
    408: "The request was not sent in time.",
    409: "It conflicts with the current state; the code says why.",
    413: "The request is too large.",
    414: "The address of the request is too long.",
    415: "The content type is not supported.",
    421: "The Host header does not name this server.",
    422: "A value is not valid; `field` names it, `remedy` says what to do.",
    429: "Too many requests; wait.",
    431: "The headers are too large.",
    500: "A bug of the plane.",
    503: "The weaver or the database does not answer; ask again after `Retry-After`.",
}


class Problem(Schema, schema="Problem"):
    """What is wrong, for people (`detail`, `remedy`) and for machines (`code`, `field`)."""

    type: str = Field(description="names the kind of problem; its last part is the code")
    title: str = Field(description="what the status means")
    status: int
    detail: str = Field(description="what is wrong, in a sentence")
    code: str = Field(description="what machines match")
    field: str | None = Field(default=None, description="where in what was sent it is wrong")
    remedy: str | None = Field(default=None, description="what to do about it")


class ApiProblem(HTTPException):
    """A problem that a route finds by itself."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        field: str = "",
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.code = code
        self.field = field
        self.remedy = remedy


def problem_response(
    status: int,
    code: str,
    detail: str,
    field: str = "",
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem as a response; its texts may have any characters."""
    facts = problem(status, code, detail, field, remedy)
    return Response(json.dumps(facts), status, dict(headers) if headers else None, MEDIA)


def problem(
    status: int, code: str, detail: str, field: str = "", remedy: str = ""
) -> dict[str, Any]:
    """Return a problem as JSON has it, alone or as a part of an answer."""
    facts: dict[str, Any] = {
        "type": f"urn:torchloom:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": shorten(detail, _LONGEST),
        "code": code,
    }
    facts.update({k: shorten(v, _LONGEST) for k, v in (("field", field), ("remedy", remedy)) if v})
    return facts


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of statuses that are problems."""
    return {status: _declaration(status) for status in statuses}


def status_of(error: LoomError) -> int:
    """Return the status of an error: by its code, else by whose fault it is."""
    return STATUS.get(error.code, 422 if isinstance(error, UserError) or _is_users(error) else 409)


def explained(error: LoomError) -> Response:
    """Return an error of ours as a response."""
    facts = problem_of(error)
    headers = dict(_RETRY) if facts["status"] == 503 else None
    return Response(json.dumps(facts), facts["status"], headers, MEDIA)


def problem_of(error: LoomError | ApiProblem) -> dict[str, Any]:
    """Return an error as a problem, as JSON has it."""
    if isinstance(error, ApiProblem):
        return problem(error.status_code, error.code, error.detail, error.field, error.remedy)
    field = str(getattr(error, "field", "") or getattr(error, "path", "") or "")
    remedy = str(getattr(error, "remedy", "") or "")
    return problem(status_of(error), error.code, str(error), field, remedy)


def register(app: FastAPI) -> None:
    """Register handlers that answer every error of an app as a problem."""
    app.add_exception_handler(LoomError, _ours)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _hung_up)
    app.add_exception_handler(Exception, _bug)


def _is_users(error: LoomError) -> bool:
    return error.exit_code == UserError.exit_code


def _declaration(status: int) -> dict[str, Any]:
    return {
        "description": WORDS[status],
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, LoomError)
    return explained(error)


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiProblem):
        return problem_response(
            error.status_code, error.code, error.detail, error.field, error.remedy, error.headers
        )
    if error.status_code == 400:  # the framework could not read the body
        return _unread(str(error.detail))
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_").replace("'", "")
    return problem_response(error.status_code, code, str(error.detail), headers=error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _unread(str(first.get("ctx", {}).get("error", first["msg"])))
    where = [str(part) for part in first["loc"]]
    field = ".".join(where[1:]) or where[0]
    wanted = first["msg"][:1].lower() + first["msg"][1:]
    return problem_response(422, "bad_value", f"{field}: {wanted}", field, f"correct it: {wanted}")


def _unread(why: str) -> Response:
    return problem_response(400, "bad_json", f"not JSON: {why}", BODY, "send one JSON document")


async def _hung_up(request: Request, error: Exception) -> Response:
    return problem_response(
        400, "hung_up", "the client closed the connection"
    )  # no client reads it; the log has a line


async def _bug(request: Request, error: Exception) -> Response:
    return problem_response(
        500, "internal", "the server failed", remedy="its log has the traceback; report it"
    )
