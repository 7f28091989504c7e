#!/usr/bin/env python3
"""Make an unpacked environment name the folder it is in.

This file is put into every packed environment as `bin/loom-relocate` and needs nothing but Python.
Usage: loom-relocate [FOLDER [FINAL]], FINAL being where the folder will be moved to.
"""

import json
import os
import re
import sys
from collections.abc import Callable


def main(words: "list[str]") -> str:
    """Rewrite every file that the manifest lists; return what went wrong."""
    root = words[0] if words else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    new = words[1] if len(words) > 1 else os.path.abspath(root)
    path = os.path.join(root, ".loom-env.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    old_bytes, new_bytes = os.fsencode(manifest["prefix"]), os.fsencode(new)
    if manifest["binary"] and len(new_bytes) > len(old_bytes):
        return f"the path may have {len(old_bytes)} characters at most: {new}"
    old = re.compile(re.escape(old_bytes) + rb"(?![\w.-])")  # not the folder beside it, `env2`
    for name in manifest["text"]:
        _replace(os.path.join(root, name), lambda data: old.sub(lambda _: new_bytes, data))
    for name in manifest["binary"]:
        _replace(os.path.join(root, name), lambda data: _in_binary(data, old, new_bytes))
    manifest["prefix"] = new
    _replace(path, lambda data: json.dumps(manifest, indent=1).encode() + b"\n")
    return ""


def _in_binary(data: bytes, old: "re.Pattern[bytes]", new: bytes) -> bytes:
    """Keep every string at its place: what a shorter path leaves is filled with zeros."""

    def shorter(match: "re.Match[bytes]") -> bytes:
        return old.sub(lambda _: new, match[0]).ljust(len(match[0]), b"\0")

    return re.sub(old.pattern + rb"[^\0]*", shorter, data)


def _replace(path: str, change: "Callable[[bytes], bytes]") -> None:
    with open(path, "rb") as file:
        data = file.read()
    mode = os.stat(path).st_mode
    with open(path + ".loom-new", "wb") as file:
        file.write(change(data))
    os.chmod(path + ".loom-new", mode)
    os.replace(path + ".loom-new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
