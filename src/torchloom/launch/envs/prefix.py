"""Recognise a Python environment by its folder: a venv or a conda one."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import UserError, shorten

_NAMED = re.compile(r"^\s*(?:export )?VIRTUAL_ENV=(['\"]?)(/[^'\"$`\n]+)\1\s*$", re.MULTILINE)


class NotAnEnvironment(UserError):
    """A folder without an interpreter of its own."""

    code = "not_an_environment"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shorten(str(path))} is no Python environment: {why}; "
            "name a venv or conda folder, such as .venv or $CONDA_PREFIX"
        )


@dataclass(frozen=True, slots=True)
class Prefix:
    """An environment: where it is, and whose interpreter it runs."""

    path: Path
    kind: str  # venv or conda
    named: str  # the path its own files call it by: it may have been moved, or be behind a link
    base: str = ""  # the interpreter outside the folder that a venv needs on every host


def find_prefix(path: Path) -> Prefix:
    """Return what kind of environment a folder is; anything else is an error."""
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise NotAnEnvironment(path, "no such folder")
    if (path / "conda-meta").is_dir():
        return Prefix(path, "conda", str(path))
    if not (path / "pyvenv.cfg").is_file():
        raise NotAnEnvironment(path, "neither pyvenv.cfg nor conda-meta is in it")
    python = path / "bin/python"
    if not python.exists():
        raise NotAnEnvironment(path, "its bin/python is missing or leads nowhere")
    target = python.resolve()
    base = "" if target.is_relative_to(path.resolve()) else str(target)
    return Prefix(path, "venv", _own_name(path), base)


def _own_name(path: Path) -> str:
    """Return the path that a venv's activate script has; else the one it is found at."""
    try:
        text = (path / "bin/activate").read_text(errors="replace")
    except OSError:
        return str(path)
    match = _NAMED.search(text)
    return match[2] if match else str(path)


def own_prefix(env: Mapping[str, str]) -> Path:
    """Return the active environment: the shell's, else the one this command is in."""
    named = env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if named:
        return Path(named)
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    raise UserError("no environment is active; name one: `loom env pack .venv -o env.tar.gz`")
