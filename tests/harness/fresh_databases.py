"""Databases that are new but need not be made: migrations take longer than most of the tests."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from torchloom.weaver.store import DatabasePlace, open_store


def fresh(folder: Path) -> DatabasePlace:
    """Return a place with databases as a first start makes them; those that are there stay."""
    for made in _template().iterdir():
        if not (folder / made.name).exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy(made, folder / made.name)
    return DatabasePlace(folder)


@functools.cache
def _template() -> Path:
    """Return a folder with both, made once a process by what makes them for everybody."""
    folder = Path(tempfile.mkdtemp(prefix="loom-db-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_store(DatabasePlace(folder)).close()
    return folder
