"""Walk a project's files, leaving out what its ignore file lists."""

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

IGNORE_FILES = (".loomignore", ".torchxignore", ".dockerignore")  # the first that exists counts


def read_ignore(root: Path) -> tuple[str, ...]:
    """Return the patterns of a project's ignore file, comments and blank lines left out."""
    for name in IGNORE_FILES:
        if (root / name).is_file():
            lines = (line.strip() for line in (root / name).read_text().splitlines())
            return tuple(line for line in lines if line and not line.startswith("#"))
    return ()


def is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether the last pattern that matches a path excludes it; `!` includes it again.

    A pattern matches a path, or a folder it is in, from the project's root on.
    """
    ignored = False
    prefixes = list(accumulate(path.split("/"), "{}/{}".format))
    for pattern in patterns:
        wanted = pattern.removeprefix("!").strip("/")
        if any(fnmatch(prefix, wanted) for prefix in prefixes):
            ignored = not pattern.startswith("!")
    return ignored


def walk_workspace(root: Path, leave_out: Path | None = None) -> Iterator[Path]:
    """Yield a project's files and links relative to its root, a folder's own before those below.

    Links are not followed. `leave_out` is a folder that is no part of the project wherever it is.
    """
    patterns = read_ignore(root)
    may_return = any(pattern.startswith("!") for pattern in patterns)
    for folder, names, files in os.walk(root, onerror=_raise):
        here = Path(folder)
        links = [name for name in names if (here / name).is_symlink()]
        for name in sorted([*files, *links]):
            path = (here / name).relative_to(root)
            if not is_ignored(path.as_posix(), patterns):
                yield path
        names[:] = sorted(
            name
            for name in names
            if here / name != leave_out
            and (may_return or not is_ignored(_below(root, here / name), patterns))
        )


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _raise(error: OSError) -> NoReturn:
    """Raise: a folder that cannot be read is not an empty one."""
    raise error
