"""Assemble the server: routes, the access they use, the middleware before them, the API's page."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp

from torchloom.server import problems, submission, verification
from torchloom.server.access_log import Counts, Passing, log_request
from torchloom.server.bundle import NO_BUNDLE, Bundle
from torchloom.server.pages import STYLE, page
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.problems import Problem, declared
from torchloom.server.routes import ROUTERS, not_found
from torchloom.server.security import policy
from torchloom.server.security.auth import HEADER, identities_of
from torchloom.server.security.guard import Reach, RequestGuard
from torchloom.server.security.limits import BodyLimit
from torchloom.server.stream import hub
from torchloom.server.stream.topics import session

Live = Callable[[FastAPI], AbstractAsyncContextManager[None]]
# background work of the app
LIVES: tuple[Live, ...] = (hub.lifespan, verification.lifespan, session.lifespan)
_METHODS = ("get", "post", "put", "patch", "delete")
_EVERYWHERE = (401, 403, 408, 414, 421, 431, 500)
_NO_SUCH_PATH = (404, 405)  # where a part of the path is free text
_OPEN = ("/healthz", "/readyz", "/login", "/api/login", "/api/authority")
_WAYS: list[dict[str, list[str]]] = [{"token": []}, {"cookie": [], "session": []}]
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "loom-PORT"},
    "session": {"type": "apiKey", "in": "header", "name": HEADER},
}


@dataclass(frozen=True, slots=True)
class Front:
    """How a server is reached (names, TLS and by whose word it is trusted), and what it shows."""

    reach: Reach
    tls: bool = False
    authority: Path | None = None
    bundle: Bundle = NO_BUNDLE
    manual: Bundle = NO_BUNDLE


def build(access: PlaneAccess, front: Front) -> FastAPI:
    """Return the app; one with a route that has no row in the policy is not built."""
    app = FastAPI(
        title="torchLoom",
        version=version("torchloom"),
        docs_url=None,  # the framework's page is loaded from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.access = access
    app.state.link = access.link
    app.state.counts = Counts()
    app.state.identities = identities_of(access.store.state)
    app.state.tls = front.tls
    app.state.authority = front.authority
    app.state.bundle = front.bundle
    app.state.manual = front.manual
    for router in ROUTERS:
        app.include_router(router)
    problems.register(app)
    _describe(app)
    policy.check(app)
    return app


def guarded(app: FastAPI, front: Front) -> ASGIApp:
    """Return the app behind everything that a request must pass first."""
    shown, identities = partial(not_found, front.bundle), app.state.identities
    behind = RequestGuard(BodyLimit(app), identities, front.reach, not_found=shown)
    return Passing(behind, log_request, app.state.counts.count)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    access: PlaneAccess = app.state.access
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(access.close)
        for each in LIVES:
            await stack.enter_async_context(each(app))
        yield


def _describe(app: FastAPI) -> None:
    """Have an app describe itself, once, when it is asked to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(
                get_openapi(title=app.title, version=app.version, routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _docs_page(openapi())


def _complete(described: dict[str, Any]) -> dict[str, Any]:
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    schemas.update(submission.schemas())
    described["components"]["securitySchemes"] = _SECURITY
    for path, item in described["paths"].items():
        for method in item.keys() & set(_METHODS):
            _complete_operation(item[method], path)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return described


def _complete_operation(operation: dict[str, Any], path: str) -> None:
    responses = operation["responses"]
    others = _NO_SUCH_PATH if "{" in path else ()
    for status, declaration in declared(*_EVERYWHERE, *others).items():
        responses.setdefault(str(status), declaration)
    if "application/json" in responses.get("422", {}).get("content", {}):
        responses["422"] = declared(422)[422]  # the framework's own words are not ours
    operation["security"] = [] if path in _OPEN else _WAYS


def _docs_page(described: Mapping[str, Any]) -> HTMLResponse:
    """Return the page of an OpenAPI document."""
    info = described["info"]
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        "<p>For programs: <a href='/openapi.json'>/openapi.json</a></p>",
    ]
    group = ""
    for tag, path, method, operation in sorted(_operations(described), key=lambda one: one[0]):
        if tag != group:
            group = tag
            parts.append(f"<h2>{escape(tag)}</h2>")
        parts.append(_shown(path, method, operation))
    return page("torchLoom API", STYLE, "\n".join(parts))


def _operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for path, item in described["paths"].items():
        for method in _METHODS:
            if method in item:
                yield next(iter(item[method].get("tags", ())), "more"), path, method, item[method]


def _shown(path: str, method: str, operation: Mapping[str, Any]) -> str:
    what = operation.get("description") or operation.get("summary") or ""
    rows = [_parameter(one) for one in operation.get("parameters", ())]
    rows += [_row("body", kind, "") for kind in operation.get("requestBody", {}).get("content", ())]
    rows += [
        _row(status, answer.get("description", ""), "")
        for status, answer in sorted(operation["responses"].items())
    ]
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"<span>{escape(what)}</span></summary><table>{''.join(rows)}</table></details>"
    )


def _parameter(one: Mapping[str, Any]) -> str:
    need = ", required" if one.get("required") else ""
    return _row(one["name"], f"in the {one['in']}{need}", one.get("description", ""))


def _row(*cells: str) -> str:
    first, *others = (escape(cell) for cell in cells)
    return f"<tr><td><code>{first}</code></td>{''.join(f'<td>{each}</td>' for each in others)}</tr>"
