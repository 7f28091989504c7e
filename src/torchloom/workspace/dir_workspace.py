"""Copy a workspace into a folder of its own."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure, UserError, shorten
from torchloom.specs.workspace import local_path
from torchloom.workspace.api import walk_workspace


class WorkspaceNotCopied(Failure):
    """A file of the workspace cannot be read, or its copy not written."""

    code = "workspace_not_copied"


def check(projects: Mapping[str, str]) -> None:
    """Refuse projects that do not exist or places outside the copy, before anything is made."""
    for project, place in projects.items():
        shown = shorten(project)
        if not os.path.exists(local_path(project)):  # Path.exists raises for an overlong name
            raise UserError(f"workspace {shown!r} does not exist; name a folder that does")
        if Path(place).is_absolute() or ".." in Path(place).parts:
            shown = shorten(place)
            raise UserError(f"workspace place {shown!r} must be below the workspace, without `..`")


def copy(projects: Mapping[str, str], target: Path) -> None:
    """Copy every project to its place below the target, without what its ignore file names.

    The state folder is never part of a copy: it holds the copies.
    """
    target.mkdir(parents=True, exist_ok=True)
    for project, place in projects.items():
        source, goal = local_path(project).resolve(), target / place
        try:
            if source.is_dir():
                for path in list(walk_workspace(source, settings.loom_home().resolve())):
                    _copy(source / path, goal / path, source)
            else:
                _copy(source, goal / source.name if goal.is_dir() else goal, source.parent)
        except OSError as error:
            raise WorkspaceNotCopied(
                f"cannot copy workspace {project!r}: {error.filename}: {error.strerror}; "
                "fix that, or leave it out with a line in .loomignore"
            ) from error


def _copy(path: Path, goal: Path, root: Path) -> None:
    """Copy a file or a link; what is neither (a socket, a pipe) has no content to copy."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        goal.unlink(missing_ok=True)
        goal.symlink_to(_aim(path, root))
    elif path.is_file():
        shutil.copy2(path, goal)


def _aim(link: Path, root: Path) -> str:
    """Return what the copied link points to: the file in the copy, or the same place outside."""
    written = os.readlink(link)
    meant = os.path.normpath(link.parent / written)
    return written if Path(meant).is_relative_to(root) else meant
