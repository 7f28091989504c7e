"""Write the schemas of the server for the dashboard; `npm run types` makes TypeScript of them.

dashboard/openapi.json describes the routes, dashboard/stream.json the messages of the WebSocket.
`--check` writes nothing and exits 1 when a file differs from what the server's models give.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pydantic import TypeAdapter

from torchloom.server.app import Front, build
from torchloom.server.models.stream import ServerMessage, StreamDeltas, StreamValues
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import reach
from torchloom.server.stream.topics.socket_messages import Sub, Unsub
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.reader import open_reading

WORDS = ("title", "description", "summary", "examples", "operationId", "tags", "security")
BY_NAME = ("properties", "schemas", "paths", "responses", "securitySchemes")  # keys are names
FOLDER = Path(__file__).resolve().parents[1] / "dashboard"
REF = "#/components/schemas/{}"


def main(words: list[str]) -> int:
    """Write the files, or only compare them; return the exit code."""
    stale = 0
    for name, text in (("openapi.json", routes()), ("stream.json", stream())):
        file = FOLDER / name
        if "--check" not in words:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            print(f"dashboard/{name} is old: run `make types`", file=sys.stderr)
            stale = 1
    return stale


def routes() -> str:
    """Return the schemas of all routes, without prose and errors."""
    return written(described_routes())


def described_routes() -> dict[str, Any]:
    """Return the description of all routes, without errors; this needs no plane."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        access = PlaneAccess(
            WeaverLink(folder / "none"), open_reading(DatabasePlace(folder)), folder
        )
        found: dict[str, Any] = build(access, Front(reach(0))).openapi()
    for item in found["paths"].values():
        for operation in item.values():
            answers = operation["responses"].items()
            operation["responses"] = {code: answer for code, answer in answers if code < "4"}
    return found


def stream() -> str:
    """Return the schemas of what the page's WebSocket carries, without prose."""
    return written(described_stream())


def described_stream() -> dict[str, Any]:
    """Return the description of what the page's WebSocket carries, in both directions."""
    models: dict[str, Any] = {
        "ServerMessage": ServerMessage,
        "StreamValues": StreamValues,
        "StreamDeltas": StreamDeltas,
    }
    adapters = [(name, "validation", TypeAdapter(model)) for name, model in models.items()]
    named, found = TypeAdapter.json_schemas(adapters, ref_template=REF.format("{model}"))
    sent = {name: schema for (name, _), schema in named.items() if "$ref" not in schema}
    _, received = msgspec.json.schema_components((Sub, Unsub), ref_template=REF.format("{name}"))
    schemas = without_defaults({**found["$defs"], **sent, **received})
    return {"openapi": "3.1.0", "paths": {}, "components": {"schemas": schemas}}


def without_defaults(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return schemas without defaults: a member that has one may be left out of a message."""
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)
    return schemas


def written(found: dict[str, Any]) -> str:
    """Return a description as its file has it."""
    info = {"title": "torchLoom", "version": "0"}
    return json.dumps({**plain(found), "info": info}, indent=1, sort_keys=True) + "\n"


def plain(node: Any, is_by_name: bool = False) -> Any:
    """Return a part of the description without its prose."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if "content" in node and "description" in node:
        return {"description": "", "content": plain(node["content"])}  # OpenAPI wants one
    return {
        name: plain(value, not is_by_name and name in BY_NAME)
        for name, value in node.items()
        if is_by_name or name not in WORDS
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
