"""Rewrite the files of an environment that name its folder, so that they work in any folder.

What cannot be written so that it finds its own place is left to `bin/loom-relocate`.
"""

import os
import re

# Python reads the two lines as one string; sh runs the interpreter beside the script.
_TRAMPOLINE = (
    b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'%s'%s \"$0\" \"$@\"\n' '''\n"
)
_LONG = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\n\"]+?)\"? \"\$0\" \"\$@\"\n' '''\n")
_POSIX_HERE = """\
# Where is this file? bash and zsh know; other shells need `bin/loom-relocate` to be run once.
_loom_env='%s'
if [ -n "${BASH_VERSION:-}" ]; then
    eval '_loom_env="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"'
elif [ -n "${ZSH_VERSION:-}" ]; then
    eval '_loom_env="$(cd "$(dirname "${(%%):-%%x}")/.." && pwd)"'
fi
"""
_FISH_HERE = "set -l _loom_env (dirname (dirname (realpath (status --current-filename))))\n"


def rewrite(name: str, data: bytes, prefix: str) -> bytes:
    """Return a file's content for any folder; `name` is its path below the prefix."""
    old = os.fsencode(prefix)
    folder, _, last = name.rpartition("/")
    if name == "pyvenv.cfg":
        return _config(data)
    if last.endswith((".pth", ".egg-link")):
        return _path_file(folder, data, prefix)
    if folder == "bin" and old in data:
        if last == "activate":
            return _variable(data, prefix, _POSIX_HERE % prefix.replace("'", "'\\''"))
        if last == "activate.fish":
            return _variable(data, prefix, _FISH_HERE)
        return _script(data, old)
    return data


def _script(data: bytes, old: bytes) -> bytes:
    """Give a Python script a first line that finds the interpreter beside it."""
    if match := _LONG.match(data):
        words, rest = match[1], data[match.end() :]
    elif data.startswith(b"#!"):
        line, _, rest = data.partition(b"\n")
        words = line[2:].strip()
    else:
        return data
    path, space, flags = words.partition(b" ") if b" " not in old else (words, b"", b"")
    interpreter = path.rpartition(b"/")[2]
    if path != old + b"/bin/" + interpreter or b"python" not in interpreter:
        return data
    return _TRAMPOLINE % (interpreter, space + flags) + rest


def _variable(data: bytes, prefix: str, here: str) -> bytes:
    """Put a variable in the place of the folder's name, and compute it at the top."""
    word = re.escape(os.fsencode(prefix))
    pattern = re.compile(rb"(?<![^\s=('\"])(['\"]?)" + word + rb"\1(?=[\s;)]|$)", re.MULTILINE)
    changed, count = pattern.subn(b'"$_loom_env"', data)
    return os.fsencode(here) + changed if count else data


def _config(data: bytes) -> bytes:
    """Drop the command that made the venv; nothing reads it."""
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if line.partition(b"=")[0].strip() != b"command")


def _path_file(folder: str, data: bytes, prefix: str) -> bytes:
    """Make paths inside the environment relative to their file, as `site` reads them."""
    lines = []
    for line in data.splitlines(keepends=True):
        text = os.fsdecode(line.strip())
        inside = text == prefix or text.startswith(f"{prefix}/")
        end = line[len(line.rstrip(b"\r\n")) :]
        short = os.path.relpath(text, f"{prefix}/{folder}") if inside else ""
        lines.append(os.fsencode(short) + end if inside else line)
    return b"".join(lines)
