"""Hold on to checkpoints while they are looked at: a job that runs removes what it no longer keeps.

In a folder a second name for each file is enough, and costs nothing. What is in a bucket is read
where it is.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.errors import Failure

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage

_PREFIX = ".replay-"


@contextlib.contextmanager
def borrowed(storage: "Storage", steps: Iterable[int]) -> Iterator["Storage"]:
    """Give a store with those of these checkpoints that are still there; it goes afterwards."""
    from torchloom.checkpoint import open_storage

    root = Path(storage.root)
    if not root.is_absolute():
        yield storage
        return
    folder = root.parent / f"{_PREFIX}{os.urandom(4).hex()}"
    try:
        _take(storage, steps, folder)
        yield open_storage(str(folder), {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take(storage: "Storage", steps: Iterable[int], folder: Path) -> None:
    try:
        for step in steps:
            _link(Path(storage.place_of(step)), folder)
    except OSError as error:
        raise Failure(f"cannot hold on to checkpoints in {folder}: {error.strerror}") from error


def _link(place: Path, folder: Path) -> None:
    """Give a checkpoint's files second names; one that is going just now has none of them."""
    own = folder / place.name
    own.mkdir(mode=0o700, parents=True)
    try:
        for name in os.listdir(place):
            _link_one(place / name, own / name)
    except FileNotFoundError:
        shutil.rmtree(own)


def _link_one(file: Path, own: Path) -> None:
    try:
        os.link(file, own)
    except PermissionError:  # another user's, or a file system without links
        shutil.copyfile(file, own)
