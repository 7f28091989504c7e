"""The user's own folders that travel with an app."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from torchloom.errors import UserError, shorten

if TYPE_CHECKING:
    from pathlib import Path

YAML_STARTS = tuple("\"'{[!&*|>%@`#?")


@dataclass(eq=False)
class Workspace:
    """Local folders or files, each with its place below the job's folder ("" is that folder)."""

    projects: dict[str, str]

    def __bool__(self) -> bool:
        return bool(self.projects)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and self.projects == other.projects

    def __hash__(self) -> int:
        return hash(frozenset(self.projects.items()))

    def __str__(self) -> str:
        return ";".join(f"{src}:{dst}" if dst else src for src, dst in self.projects.items())

    def is_unmapped_single_project(self) -> bool:
        """Tell whether this is one project that goes to the top of the job's folder."""
        return list(map(bool, self.projects.values())) == [False]

    def merge_into(self, outdir: str | PathLike[str]) -> None:
        """Copy every project to its place below this folder, over what is there."""
        from pathlib import Path

        pairs = [(local_path(src), _target(outdir, dst)) for src, dst in self.projects.items()]
        for src, dst in pairs:
            _check_source(src, dst)
        for src, dst in pairs:
            _copy(src, dst, into_folder=dst == Path(outdir))

    @staticmethod
    def from_str(workspace: str | None) -> "Workspace":
        """Read a path, or YAML that maps paths to places; nothing means no projects."""
        if not workspace:
            return Workspace({})
        parsed = _parse(workspace)
        projects = {parsed: ""} if isinstance(parsed, str) else _places(parsed, workspace)
        for project in projects:
            local_path(project)
        return Workspace(projects)


def local_path(project: str) -> "Path":
    """Return the path of a project, which may be written `file:///...` or `~/...`."""
    from pathlib import Path

    scheme, separator, rest = project.partition("://")
    if separator and scheme != "file":
        raise UserError(
            f"workspace {shorten(project)!r} is not on this machine: give a local path or file://"
        )
    # not Path.expanduser, which raises for a user that does not exist
    return Path(os.path.expanduser(rest if separator else project))


def _parse(text: str) -> object:
    """Read YAML, but a plain path without the price of importing a YAML parser."""
    marked = any(mark in text for mark in ("\n", ": ", " #")) or text.endswith(":")
    if not marked and not text.startswith(YAML_STARTS):
        return text
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"workspace {shorten(text)!r} is not YAML: {reason}") from error


def _places(parsed: object, text: str) -> dict[str, str]:
    if not isinstance(parsed, Mapping):
        raise UserError(
            f"workspace {shorten(text)!r} is neither a path nor a mapping of paths to folders"
        )
    projects = {src: "" if dst is None else dst for src, dst in parsed.items()}
    for part in (*projects, *projects.values()):
        if not isinstance(part, str):
            raise UserError(f"workspace: {shorten(repr(part))} is not text; put it in quotes")
    return projects


def _target(outdir: str | PathLike[str], place: str) -> "Path":
    from pathlib import Path

    if place.startswith(("/", "~")) or ".." in Path(place).parts:
        raise UserError(f"workspace place {shorten(place)!r} leaves the job's folder")
    return Path(outdir) / place


def _check_source(src: "Path", dst: "Path") -> None:
    if not src.exists():
        raise UserError(f"workspace {shorten(str(src))!r} does not exist")
    if src.is_dir() and dst.resolve().is_relative_to(src.resolve()):
        raise UserError(f"workspace {shorten(str(src))!r} cannot be copied into itself ({dst})")


def _copy(src: "Path", dst: "Path", into_folder: bool) -> None:
    import shutil

    if src.is_dir():
        shutil.copytree(src, dst, dirs_exist_ok=True)
        return
    (dst if into_folder else dst.parent).mkdir(parents=True, exist_ok=True)
    shutil.copy2(src, dst)
