"""The API's description for people: every route on one page, readable without a network."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.responses import HTMLResponse

from torchloom.server.pages import STYLE, page

_METHODS = ("get", "post", "put", "patch", "delete")


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
