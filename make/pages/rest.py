"""Pages of the HTTP interface: the routes of REST, the messages of the WebSocket."""

from collections.abc import Mapping
from typing import Any

import openapi
from pages.schemas import named, type_link, type_of
from pages.text import code, escaped, prose, section, table

from torchloom.server.security.policy import POLICY

_TAGS = {
    "jobs": "Jobs",
    "commands": "Commands",
    "checkpoints": "Checkpoints",
    "metrics": "Metrics",
    "logs": "Logs",
    "experiments": "Experiments",
    "devices": "Devices",
    "cluster": "Cluster",
    "people": "People",
    "health": "Health",
}
_ABOUT = """\
The server of a plane answers at `http://127.0.0.1:8787` unless `loom up --host` or another
program on that port says otherwise; `loom up --status` shows the address, and `GET
/openapi.json` has this description for programs.

Send a token with each request: `Authorization: Bearer TOKEN`. `loom tokens add USER` makes one.
Roles are `viewer`, `operator` and `admin`; each may do what those before it may. `open` needs
no token.

A request that changes something may carry `Idempotency-Key: KEY`; a repeated key returns the
first reply and has no further effect. Lists have `limit` and `cursor`; `next` of a reply is the
`cursor` of the following page.

An error is a [Problem](#problem), with `code` (for programs), `detail`, and often
`field` and `remedy`."""
_STREAM_ABOUT = """\
`/api/stream` carries the data of all jobs that a page shows, `/api/jobs/{id}/stream` that of
one job. Both need the role `viewer`. A client authenticates as with [REST](rest.md), by header
or by the cookie of the dashboard; other origins than the server's own are refused. Messages are
JSON objects; `type`, or the tag that the type names, says which."""


def pages() -> dict[str, str]:
    """Return both pages."""
    return {
        "rest.md": _rest(openapi.described_routes()),
        "websocket.md": _websocket(openapi.described_stream()["components"]["schemas"]),
    }


def _rest(described: Mapping[str, Any]) -> str:
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, item in described["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or ["health"])[0]
            by_tag.setdefault(tag, []).append((method.upper(), path, operation))
    ordered = [*_TAGS, *sorted(by_tag.keys() - _TAGS.keys())]
    schemas = described["components"]["schemas"]
    return section(
        "# REST",
        _ABOUT,
        *(_tag(tag, by_tag[tag]) for tag in ordered if tag in by_tag),
        "## Types",
        *named(schemas, sorted(schemas), type_link),
    )


def _tag(tag: str, operations: list[tuple[str, str, Mapping[str, Any]]]) -> str:
    return section(
        f"## {_TAGS.get(tag, tag.capitalize())}", *(_route(*each) for each in operations)
    )


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = [
        (
            code(each["name"]),
            each["in"],
            type_of(each.get("schema"), type_link)
            + ("" if each.get("required") else " (optional)"),
            escaped(each.get("description") or each.get("schema", {}).get("description") or ""),
        )
        for each in operation.get("parameters", ())
        if each["name"].lower() != "idempotency-key"
    ]
    who = next(
        (role for (verb, row), role in POLICY.items() if (verb, _plain(row)) == (method, path)), ""
    )
    body = operation.get("requestBody", {}).get("content", {})
    takes = _types(body)
    replies = [
        f"{status}: {_types(reply.get('content', {})) or 'no body'}"
        for status, reply in operation["responses"].items()
    ]
    facts = [f"- Role: {who or 'open'}"]
    facts += [f"- Body: {takes}"] if takes else []
    facts += [f"- Replies: {'; '.join(replies)}"] if replies else []
    return section(
        f"### {method} {path}",
        prose(operation.get("description")),
        "\n".join(facts),
        table(("parameter", "in", "type", "meaning"), parameters) if parameters else "",
    )


def _plain(row: str) -> str:
    return row.replace(":path}", "}")


def _types(content: Mapping[str, Any]) -> str:
    by_type: dict[str, list[str]] = {}
    for kind, each in content.items():
        by_type.setdefault(type_of(each.get("schema"), type_link), []).append(kind)
    return " or ".join(
        text if kinds == ["application/json"] else f"{text} ({', '.join(map(code, kinds))})"
        for text, kinds in by_type.items()
    )


def _websocket(schemas: Mapping[str, Any]) -> str:
    sent = [name for name in ("Sub", "Unsub") if name in schemas]
    rest = sorted(schemas.keys() - set(sent))
    return section(
        "# WebSocket",
        _STREAM_ABOUT,
        "## Sent by the client",
        *named(schemas, sent, type_link),
        "## Sent by the server, and their parts",
        *named(schemas, rest, type_link),
    )
