"""Walk a project's files, leaving out what its ignore file says."""

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

IGNORE_FILES = (".loomignore", ".torchxignore", ".dockerignore")  # the first that exists counts


def read_ignore(root: Path) -> tuple[str, ...]:
    """Return the patterns of a project's ignore file, comments and blank lines left out."""
    for name in IGNORE_FILES:
        if (root / name).is_file():
            lines = (line.strip() for line in (root / name).read_text().splitlines())
            return tuple(line for line in lines if line and not line.startswith("#"))
    return ()


def is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether the last pattern that speaks of a path leaves it out; `!` takes it back in."""
    ignored = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").strip("/")
        if fnmatch(path, wanted) or any(fnmatch(str(up), wanted) for up in Path(path).parents):
            ignored = not pattern.startswith("!")
    return ignored


def walk_workspace(root: Path) -> Iterator[Path]:
    """Yield the files of a project relative to its root, folders' contents in order of name."""
    patterns = read_ignore(root)
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(folder, name).relative_to(root)
            if not is_ignored(path.as_posix(), patterns):
                yield path
