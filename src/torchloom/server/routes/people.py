"""Users, tokens, links, and the way in."""

import contextlib
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.responses import HTMLResponse, PlainTextResponse

from torchloom.errors import LoomError
from torchloom.server.models.common import Answer, Key, Page, Request
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import ApiProblem, declared
from torchloom.server.security.auth import (
    Attempts,
    Identities,
    Who,
    claim_of,
    cookie_name,
    cookies_of,
    login_page,
    proof_of,
)
from torchloom.weaver.users import COOKIE_LIFETIME, LONGEST_LIFETIME

_PROBLEMS = (400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 500, 503)
_NO_STORE = {"Cache-Control": "no-store"}
_REFUSED = ("link_unknown", "link_used", "link_over", "user_disabled")
_PEM = "application/x-pem-file"

Role = Literal["viewer", "operator", "admin"]
UserName = Annotated[str, Field(min_length=1, max_length=64, examples=["alice"])]
router = APIRouter(tags=["people"], responses=declared(*_PROBLEMS))
own_router = APIRouter(tags=["people"])  # tokens of one's own, which need no admin


class User(Answer, schema="User"):
    """A user of the plane."""

    name: str
    role: Role
    disabled: bool
    run_as: str | None = Field(
        description="the unix account of their jobs, on a plane that runs as root"
    )
    created_at: str


class UserPage(Page, schema="UserPage"):
    """All users."""

    items: list[User]


class UserChange(Request, schema="UserChange"):
    """A change of a user; a member that is left out is not changed."""

    role: Role | None = None
    disabled: bool | None = None
    run_as: Annotated[str | None, Field(max_length=64)] = Field(
        None, description="a unix account of the plane's host; an empty text removes it"
    )


class Token(Answer, schema="Token"):
    """A token or cookie of a user; the secret is not shown again."""

    id: str
    user: str
    label: str
    kind: Literal["token", "cookie"]
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class TokenPage(Page, schema="TokenPage"):
    """Tokens, oldest first."""

    items: list[Token]


class TokenRequest(Request, schema="TokenRequest"):
    """A token that is to be made."""

    user: UserName
    label: Annotated[str, Field(max_length=200)] = ""
    seconds: Annotated[float | None, Field(ge=1, le=LONGEST_LIFETIME)] = None


class NewToken(Token, schema="NewToken"):
    """A token with its secret, which is shown only once."""

    token: str


class LinkRequest(Request, schema="LinkRequest"):
    """The user that a link signs in; an unknown user is created, as a viewer by default."""

    user: UserName
    role: Role | None = None


class NewLink(Answer, schema="NewLink"):
    """A one-time sign-in link, valid for 24 hours."""

    user: str
    role: str
    is_new: bool
    code: str
    url: str
    expires_at: str


class LoginRequest(Request, schema="LoginRequest"):
    """The code of a link, and what to exchange it for."""

    code: Annotated[str, Field(min_length=1, max_length=200)]
    kind: Literal["cookie", "token"] = "cookie"
    label: Annotated[str, Field(max_length=100)] = ""


class LoginAnswer(Answer, schema="Welcome"):
    """The signed-in user and a secret: `token` if one was requested, else `session`.

    `session` is the second secret beside the cookie; every request of the browser has both.
    """

    user: str
    role: Role
    id: str
    kind: Literal["token", "cookie"]
    expires_at: str | None
    token: str | None = None
    session: str | None = None


class Me(Answer, schema="Me"):
    """The user that sends the request."""

    user: str
    role: Role
    token: str
    kind: Literal["token", "cookie"]


@router.get("/api/users", response_model=UserPage)
async def users(access: AccessDep) -> dict[str, Any]:
    """All users and their roles."""
    return {"items": await access.link.ask("users"), "next": None}


@router.put("/api/users/{name}", response_model=User)
async def put_user(
    access: AccessDep,
    who: Who,
    request: HttpRequest,
    name: Annotated[str, Path(min_length=1, max_length=64)],
    change: UserChange,
) -> Any:
    """Create or change a user. The last admin stays an admin."""
    facts = change.model_dump(exclude_none=True)
    found = await access.link.ask("user_put", user=name, author=who.user, **facts)
    _identities(request).forget()
    return found


@router.get("/api/tokens", response_model=TokenPage)
async def tokens(
    access: AccessDep, user: Annotated[str, Query(max_length=64)] = ""
) -> dict[str, Any]:
    """Tokens and cookies, of one user or of all."""
    return {"items": await access.link.ask("tokens", user=user), "next": None}


@router.post("/api/tokens", status_code=201, response_model=NewToken)
async def add_token(
    access: AccessDep, who: Who, wanted: TokenRequest, response: Response, key: Key = None
) -> Any:
    """Create a token. Its secret is in this reply and nowhere else."""
    response.headers.update(_NO_STORE)
    facts = wanted.model_dump(exclude_none=True)
    return await access.link.ask("token_add", author=who.user, key=key or "", **facts)


@router.delete("/api/tokens/{id}", response_model=Token)
async def revoke_token(
    access: AccessDep,
    who: Who,
    request: HttpRequest,
    token_id: Annotated[str, Path(alias="id", min_length=1, max_length=64)],
) -> Any:
    """Revoke a token: requests are refused at once, its WebSockets close within seconds."""
    found = await access.link.ask("token_revoke", id=token_id, author=who.user)
    _identities(request).forget()
    return found


@own_router.get("/api/me/tokens", name="tokens", response_model=TokenPage, responses=declared(503))
async def own_tokens(access: AccessDep, who: Who) -> dict[str, Any]:
    """The tokens and cookies of the user that sends the request."""
    return {"items": await access.link.ask("tokens", user=who.user), "next": None}


@own_router.delete(
    "/api/me/tokens/{id}",
    name="revoke_token",
    response_model=Token,
    responses=declared(404, 422, 503),
)
async def revoke_own_token(
    access: AccessDep,
    who: Who,
    request: HttpRequest,
    token_id: Annotated[str, Path(alias="id", min_length=1, max_length=64)],
) -> Any:
    """Revoke a token of one's own; a token of another user is not found."""
    own = await access.link.ask("tokens", user=who.user)
    if token_id not in {token["id"] for token in own}:
        raise ApiProblem(
            404, "not_found", "you have no such token", remedy="GET /api/me/tokens lists yours"
        )
    found = await access.link.ask("token_revoke", id=token_id, author=who.user)
    _identities(request).forget()
    return found


@router.post("/api/links", status_code=201, response_model=NewLink)
async def add_link(
    access: AccessDep,
    who: Who,
    wanted: LinkRequest,
    request: HttpRequest,
    response: Response,
    key: Key = None,
) -> dict[str, Any]:
    """Create a link that signs a user in once, within a day."""
    response.headers.update(_NO_STORE)
    made = await access.link.ask(
        "link_add", user=wanted.user, role=wanted.role or "", author=who.user, key=key or ""
    )
    return {**made, "url": f"{str(request.base_url).rstrip('/')}/login#{made['code']}"}


@router.post("/api/login", response_model=LoginAnswer, responses=declared(429))
async def login(
    access: AccessDep,
    wanted: LoginRequest,
    request: HttpRequest,
    response: Response,
    key: Key = None,
) -> dict[str, Any]:
    """Exchange the code of a link for a browser's session, or for a token; a code works once."""
    address, attempts = _address(request), _attempts(request)
    claim = await access.read(claim_of, access.store.state, wanted.code, time.time())
    if not claim.is_good:
        attempts.check(address, claim.account)
    label = wanted.label or ("browser" if wanted.kind == "cookie" else "login")
    try:
        found: dict[str, Any] = await access.link.ask(
            "link_use", code=wanted.code, kind=wanted.kind, label=label
        )
    except LoomError as error:
        if error.code in _REFUSED:
            attempts.failed(address, claim.account)
        raise
    response.headers.update(_NO_STORE)
    if wanted.kind == "token":
        return found
    await _end_session(access, request)
    _set_cookie(request, response, found.pop("token"))
    return found


@router.post("/api/logout", status_code=204, response_model=None)
async def logout(access: AccessDep, who: Who, request: HttpRequest, key: Key = None) -> Response:
    """Revoke the token or cookie of this request."""
    await access.link.ask("token_revoke", id=who.token, author=who.user)
    _identities(request).forget()
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request.scope), path="/", httponly=True, samesite="strict")
    return response


@router.get("/api/me", response_model=Me)
async def me(who: Who) -> dict[str, str]:
    """The user that sends the request, and their role."""
    return {"user": who.user, "role": who.role, "token": who.token, "kind": who.kind}


@router.get(
    "/api/authority", response_class=PlainTextResponse, responses={200: {"content": {_PEM: {}}}}
)
async def authority(request: HttpRequest) -> Response:
    """The certificate of this server's authority; compare its fingerprint before you trust it."""
    path = request.app.state.authority
    if path is None:
        raise ApiProblem(404, "not_found", "this server is not called over TLS")
    return PlainTextResponse(path.read_text(), media_type=_PEM)


@router.get("/login", response_class=HTMLResponse)
async def log_in_by_link(request: HttpRequest) -> Response:
    """The page that a link opens."""
    return login_page(request.app.state.bundle.is_there)


def _set_cookie(request: HttpRequest, response: Response, secret: str) -> None:
    response.set_cookie(
        cookie_name(request.scope),
        secret,
        max_age=int(COOKIE_LIFETIME),
        path="/",
        httponly=True,
        samesite="strict",
        secure=bool(request.app.state.tls),
    )


async def _end_session(access: PlaneAccess, request: HttpRequest) -> None:
    """End the session that this browser had, which the new one replaces."""
    scope, identities = request.scope, _identities(request)
    with contextlib.suppress(LoomError):  # else it runs out by itself; the link is used already
        found = await identities.session(cookies_of(scope), proof_of(scope))
        if found is not None:
            await access.link.ask("token_revoke", id=found.token, author=found.user)
            identities.forget()


def _identities(request: HttpRequest) -> Identities:
    found: Identities = request.app.state.identities
    return found


def _attempts(request: HttpRequest) -> Attempts:
    """Return the failures that this app has seen."""
    state = request.app.state
    if not hasattr(state, "attempts"):
        state.attempts = Attempts()
    found: Attempts = state.attempts
    return found


def _address(request: HttpRequest) -> str:
    return request.client.host if request.client else ""
