"""Databases that are new but need not be made: migrations take longer than most of the tests."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from torchloom.weaver.store import Place, open_store


def fresh(folder: Path) -> Place:
    """Return a place with databases as a first start makes them; those that are there stay."""
    for made in _template().iterdir():
        if not (folder / made.name).exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy(made, folder / made.name)
    return Place(folder)


@functools.cache
def _template() -> Path:
    """Return a folder with both, made once a process by what makes them for everybody."""
    folder = Path(tempfile.mkdtemp(prefix="loom-db-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_store(Place(folder)).close()
    return folder
