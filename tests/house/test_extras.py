"""What needs a package that is installed on request says which, and has nothing begun."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torchloom.errors import MissingExtra, require_extra

from ..harness.home import TIMEOUT, home, leaving
from .slim import SOURCE

__all__ = ["home"]
EXTRAS = {
    "obstore": "s3",
    "psycopg": "postgres",
    "matplotlib": "plots",
    "safetensors": "safetensors",
}
FRAMEWORKS = {"lightning", "transformers"}  # what programs import
ENGINES = {"jax", "tensorflow"}  # of ready-made trainings; make/frameworks.txt has JAX for tests


def test_what_few_need_is_not_installed_by_default() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    for package, extra in EXTRAS.items():
        assert not [line for line in project["dependencies"] if line.startswith(package)]
        assert [line for line in extras[extra] if line.startswith(package)]
    (every,) = extras["all"]
    named = set(every.removeprefix("torchloom[").rstrip("]").split(","))
    assert named == extras.keys() - {"all", "dev", "torch"} - FRAMEWORKS - ENGINES
    (tested,) = (line for line in extras["dev"] if line.startswith("torchloom["))
    assert set(tested.removeprefix("torchloom[").rstrip("]").split(",")) == {"all", *FRAMEWORKS}


def test_a_package_that_is_not_there_is_named_with_its_extra() -> None:
    with pytest.raises(MissingExtra) as caught:
        require_extra("saving to s3://b", "no_such_package", "s3")

    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        "saving to s3://b needs no_such_package, which is not installed: "
        "run pip install 'torchloom[s3]'"
    )


@pytest.mark.process
@pytest.mark.parametrize("words", [("run", "-d", "train.py"), ("launch", "train.py")])
def test_a_job_for_s3_is_refused_before_it_starts(home: Path, words: tuple[str, ...]) -> None:
    Path("train.py").write_text("open('started', 'w')\n")

    done = loom(*words, LOOM_CHECKPOINTS="s3://bucket/runs", LOOM_PLANE="0")

    assert (done.returncode, done.stdout) == (1, "")
    assert "saving to s3://bucket needs obstore, which is not installed" in done.stderr
    assert "run pip install 'torchloom[s3]', or save to a folder" in done.stderr
    assert not Path("started").exists()
    assert leaving(home) == {}
    assert not list(home.glob("runs/*"))


@pytest.mark.process
def test_a_job_for_a_folder_needs_no_extra(home: Path, tmp_path: Path) -> None:
    Path("train.py").write_text("open('started', 'w')\n")

    done = loom("launch", "train.py", LOOM_CHECKPOINTS=str(tmp_path), LOOM_PLANE="0")

    assert done.returncode == 0, done.stderr
    assert Path("started").exists()


@pytest.mark.process
def test_a_plane_with_postgres_says_what_to_install(home: Path) -> None:
    done = loom("up", LOOM_DATABASE="postgresql://user:secret@127.0.0.1/loom")

    assert done.returncode == 1
    assert "LOOM_DATABASE=postgresql://... needs psycopg, which is not installed" in done.stderr
    assert "run pip install 'torchloom[postgres]', or unset it" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.process
def test_a_picture_says_what_to_install(home: Path) -> None:
    code = "from pathlib import Path; from torchloom.history.plot import to_file"

    done = run(f"{code}; to_file([], Path('x.png'))")

    assert "NoMatplotlib: a picture needs matplotlib, which is not installed" in done.stderr
    assert "run pip install 'torchloom[plots]', or leave out --out" in done.stderr
    assert not Path("x.png").exists()


@pytest.mark.process
def test_an_export_says_what_to_install(home: Path) -> None:
    code = "from pathlib import Path; from torchloom.worker.saving.export import write_safetensors"

    done = run(f"{code}; write_safetensors({{}}, {{}}, Path('x.safetensors'))")

    assert "a .safetensors file needs safetensors, which is not installed" in done.stderr
    assert "run pip install 'torchloom[safetensors]', or export a .pt file" in done.stderr
    assert not Path("x.safetensors").exists()


@pytest.mark.process
def test_all_but_what_needs_an_extra_is_imported_without_extras(home: Path) -> None:
    done = run(
        "import importlib, pkgutil, torchloom\n"
        "run = ('__main__', '.monitor_cli', '.core', 'migrations.env')  # as programs\n"
        "for module in pkgutil.walk_packages(torchloom.__path__, 'torchloom.'):\n"
        "    if not module.name.endswith(run):\n"
        "        try:\n            importlib.import_module(module.name)\n"
        "        except ImportError as error:\n            print(module.name)\n"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "torchloom.checkpoint.bucket",
        "torchloom.checkpoint.s3",
        "torchloom.worker.train.jax_adapter",
        "torchloom.worker.train.tensorflow_adapter",
    ]


def loom(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return run(
        f"import sys; sys.argv = {['loom', *words]}; from torchloom.cli.main import run; run()",
        **env,
    )


def run(code: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run code where no package of an extra can be imported, nor in processes that it starts."""
    Path("blocked").mkdir(exist_ok=True)
    lines = (f"sys.modules[{name!r}] = None" for name in {*EXTRAS, *ENGINES})
    Path("blocked/sitecustomize.py").write_text("import sys\n" + "\n".join(lines) + "\n")
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **env, "PYTHONPATH": str(Path("blocked").resolve())},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
