"""The description of the API: every status that a route can give, and the shape of a spec."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse

from torchloom.server import submission
from torchloom.server.pages import STYLE, page
from torchloom.server.problems import Problem, declared
from torchloom.server.security.auth import HEADER

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


def docs_page(described: Mapping[str, Any]) -> HTMLResponse:
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


def describe(app: FastAPI) -> None:
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
        return docs_page(openapi())


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
