"""The names of this room: complete, cheap to import, and typed as they are read."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import torchloom
from torchloom import specs
from torchloom.specs import TORCHX_HOME, api, shape


@pytest.mark.parametrize("name", api.__all__)
def test_every_public_name_is_found_in_both_places(name: str) -> None:
    assert name in specs.__all__
    assert getattr(specs, name) is getattr(api, name)


@pytest.mark.parametrize("module", [specs, api])
def test_a_name_there_is_not_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "record", [shape.APP, shape.ROLE, shape.RESOURCE, shape.WORKSPACE, *shape.MOUNTS.values()]
)
def test_every_field_can_be_read_from_data(record: shape.RecordShape) -> None:
    declared = [field.name for field in fields(record.make)]  # type: ignore[arg-type]

    assert list(record.fields) == [name for name in declared if name != "overrides"]


def test_torchx_home_is_made_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "tx"))

    folder = TORCHX_HOME("a", "b")

    assert folder == tmp_path / "tx" / "a" / "b"
    assert folder.is_dir()


@pytest.mark.process
def test_importing_the_specs_imports_nothing_slow() -> None:
    slow = ["asyncio", "importlib.metadata", "json", "logging", "pathlib", "shutil", "yaml"]
    program = f"import sys, torchloom.specs.api; print([m for m in {slow} if m in sys.modules])"
    source = str(Path(torchloom.__file__).parents[1])

    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = [{source!r}]\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "[]\n"
