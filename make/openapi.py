"""Write what the HTTP API is to dashboard/openapi.json; `npm run types` makes TypeScript of it.

`--check` writes nothing and exits 1 when the file is not what the routes say.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchloom.server.app import Front, build
from torchloom.server.desk import Desk
from torchloom.server.security.guard import reach
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.reader import open_reading

WORDS = ("title", "description", "summary", "examples", "operationId", "tags", "security")
BY_NAME = ("properties", "schemas", "paths", "responses", "securitySchemes")  # keys are names
FILE = Path(__file__).resolve().parents[1] / "dashboard" / "openapi.json"


def main(words: list[str]) -> int:
    """Write the file, or only look at it; return the exit code."""
    text = described()
    if "--check" not in words:
        FILE.write_text(text)
        return 0
    if FILE.exists() and FILE.read_text() == text:
        return 0
    print("dashboard/openapi.json is old: run `make types`", file=sys.stderr)
    return 1


def described() -> str:
    """Return the shapes of all routes, without words and errors; no plane is needed for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        desk = Desk(WeaverLink(folder / "none"), open_reading(DatabasePlace(folder)), folder)
        found = build(desk, Front(reach(0))).openapi()
    found["info"] = {"title": "torchLoom", "version": "0"}
    for item in found["paths"].values():
        for operation in item.values():
            answers = operation["responses"].items()
            operation["responses"] = {code: said for code, said in answers if code < "4"}
    info = found["info"]
    return json.dumps({**plain(found), "info": info}, indent=1, sort_keys=True) + "\n"


def plain(node: Any, is_by_name: bool = False) -> Any:
    """Return a part of the description without what is for people."""
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
