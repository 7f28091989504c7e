"""The description of the API: every status that a route can give, and the shape of a spec."""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from torchloom.server import intake
from torchloom.server.docs_page import docs_page
from torchloom.server.problems import Problem, declared
from torchloom.server.sessions import HEADER

_EVERYWHERE = (401, 403, 408, 414, 421, 431, 500)
_NO_SUCH_PATH = (404, 405)  # where a part of the path is anybody's word
_OPEN = ("/healthz", "/readyz", "/login", "/api/login", "/api/authority")
_METHODS = ("get", "post", "put", "patch", "delete")
_WAYS: list[dict[str, list[str]]] = [{"token": []}, {"cookie": [], "session": []}]
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "loom-PORT"},
    "session": {"type": "apiKey", "in": "header", "name": HEADER},
}


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
    schemas.update(intake.schemas())
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
