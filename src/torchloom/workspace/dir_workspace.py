"""Copy a workspace into a folder of its own."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torchloom.errors import UserError
from torchloom.specs.workspace import local_path
from torchloom.workspace.api import walk_workspace


def check(projects: Mapping[str, str]) -> None:
    """Refuse projects that do not exist or places outside the copy, before anything is made."""
    for project, place in projects.items():
        if not local_path(project).exists():
            raise UserError(f"workspace {project!r} does not exist; name a folder that does")
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise UserError(f"workspace place {place!r} must be below the workspace, without `..`")


def copy(projects: Mapping[str, str], target: Path) -> None:
    """Copy every project to its place below the target, without what its ignore file names."""
    target.mkdir(parents=True, exist_ok=True)
    for project, place in projects.items():
        source, goal = local_path(project), target / place
        if source.is_file():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, goal)
            continue
        for path in walk_workspace(source):
            (goal / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, goal / path, follow_symlinks=False)
