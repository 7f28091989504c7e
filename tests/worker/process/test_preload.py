"""What a zygote may have imported: installed modules, and others whose files it can check."""

from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from torchloom.worker.process import preload

ROOTS = ("/opt/python/lib/",)


def module(name: str, path: str) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, origin=path)
    return made


def modules(*paths: Path | str) -> dict[str, ModuleType]:
    return {Path(path).stem: module(Path(path).stem, str(path)) for path in paths}


def test_installed_modules_and_files_from_elsewhere_are_fine(tmp_path: Path) -> None:
    (colour := tmp_path / "colour.py").touch()
    found = modules("/opt/python/lib/sitecustomize.py", "/opt/python/lib/json.py", colour)

    assert preload.unfit(found, ROOTS) == ""
    assert preload.foreign(found, ROOTS) == {"colour": str(colour)}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sitecustomize.py", "is run at every start of the interpreter, and not by a fork"),
        ("usercustomize.py", "is run at every start of the interpreter, and not by a fork"),
        ("bundle.zip/colour.py", "is inside an archive, where a change is not noticed"),
    ],
)
def test_what_runs_at_every_start_or_cannot_be_checked_is_not(
    tmp_path: Path, name: str, why: str
) -> None:
    path = tmp_path / name
    if path.parent == tmp_path:
        path.touch()

    assert preload.unfit(modules(path), ROOTS) == f"{path} {why}"
