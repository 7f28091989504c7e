"""The packages of an interpreter are those that its own pip lists, though it was never started."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from torchloom.weaver.runs.provenance import interpreter, normal, packages_of


def installed(folder: Path, name: str, version: str) -> None:
    """Lay down what an installer leaves of a package."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: other\nVersion: 9\n"
    )


def listed(python: Path) -> dict[str, str]:
    """Return what the interpreter's own pip says."""
    words = [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    return {normal(one["name"]): one["version"] for one in json.loads(done.stdout)}


@pytest.mark.process
def test_the_packages_of_a_real_environment_are_those_pip_lists(tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    python = tmp_path / "v" / "bin" / "python"
    (site,) = (tmp_path / "v" / "lib").glob("python3*/site-packages")
    installed(site, "Some.Thing-odd", "1.2.post1")

    found = interpreter(python)

    assert found is not None
    ours = {normal(name): version for name, version in packages_of(found.folders).items()}
    assert ours == listed(python)
    assert ours["some-thing-odd"] == "1.2.post1"
    assert found.version == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.process
def test_the_packages_of_this_very_interpreter_are_those_pip_lists() -> None:
    python = Path(sys.executable)

    found = interpreter(python, Path.home())

    assert found is not None
    ours = {normal(name): version for name, version in packages_of(found.folders).items()}
    assert ours == listed(python)


def test_an_environment_that_sees_its_base_has_its_own_version_first(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    for prefix in (base, own):
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin" / "python3").write_bytes(b"\x7fELF")
    (own / "pyvenv.cfg").write_text(
        f"home = {base}/bin\ninclude-system-site-packages = true\nversion = 3.12.1\n"
    )
    installed(base / "lib" / "python3.12" / "site-packages", "torch", "2.0")
    installed(base / "lib" / "python3.12" / "site-packages", "numpy", "1.0")
    installed(own / "lib" / "python3.12" / "site-packages", "torch", "2.5")

    found = interpreter(own / "bin" / "python3")

    assert found is not None
    assert found.version == "3.12.1"
    assert packages_of(found.folders) == {"numpy": "1.0", "torch": "2.5"}


def test_what_is_installed_meanwhile_is_seen(tmp_path: Path) -> None:
    installed(tmp_path, "a", "1")
    assert packages_of((tmp_path,)) == {"a": "1"}

    installed(tmp_path, "b", "2")

    assert packages_of((tmp_path,)) == {"a": "1", "b": "2"}


def test_broken_metadata_costs_one_package_alone(tmp_path: Path) -> None:
    installed(tmp_path, "good", "1")
    (tmp_path / "bad-1.dist-info").mkdir()
    (tmp_path / "odd-1.dist-info").mkdir()
    (tmp_path / "odd-1.dist-info" / "METADATA").write_bytes(b"\xff\xfe\n\nName: x")
    (tmp_path / "old.egg-info").write_text("Name: old\nVersion: 0.1\n")

    assert packages_of((tmp_path,)) == {"good": "1", "old": "0.1"}


def test_a_script_in_place_of_an_interpreter_says_nothing(tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexec python3\n")

    assert interpreter(shim) is None
    assert interpreter(tmp_path / "bin" / "missing") is None
