"""A wheel has the manual, or is made without it by request alone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .world import ROOT

pytestmark = [pytest.mark.process, pytest.mark.needs("hatchling")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give what a build reads, with a manual of one page."""
    made = tmp_path / "checkout"
    for name in ("src", "make", "docs/assets"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, made)
    (made / "docs/index.md").write_text("# The manual\n")
    return made


def build(checkout: Path, target: str, **more: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", checkout.parent]
    env = {**os.environ, "LOOM_NO_DASHBOARD": "1", **more}
    return subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def files(checkout: Path) -> list[str]:
    (wheel,) = checkout.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if "server/manual" in name]


def test_a_wheel_of_a_checkout_has_the_manual_that_it_builds(checkout: Path) -> None:
    done = build(checkout, "wheel")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "torchloom/server/manual/index.html" in files(checkout)
    assert "torchloom/server/manual/search/search_index.js" in files(checkout)


def test_a_wheel_of_an_sdist_has_the_manual_without_building_it(checkout: Path) -> None:
    done = build(checkout, "sdist")
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = checkout.parent.glob("*.tar.gz")
    shutil.unpack_archive(archive, checkout.parent / "unpacked", filter="data")
    (source,) = (checkout.parent / "unpacked").iterdir()
    built = (source / ".build/site/index.html").stat().st_mtime_ns

    done = build(source, "wheel")

    (made,) = (checkout.parent / "unpacked").glob("*.whl")
    with zipfile.ZipFile(made) as archived:
        assert "torchloom/server/manual/index.html" in archived.namelist()
    assert (source / ".build/site/index.html").stat().st_mtime_ns == built


def test_a_manual_that_cannot_be_built_fails_the_wheel_and_names_the_way_out(
    checkout: Path,
) -> None:
    (checkout / "docs/index.md").write_text("# The manual\n\n[dead](absent.md)\n")

    refused = build(checkout, "wheel")
    made = list(checkout.parent.glob("*.whl"))
    done = build(checkout, "wheel", LOOM_NO_DOCS="1")

    assert (refused.returncode, made) == (1, [])
    assert "absent.md" in refused.stderr
    assert refused.stderr.splitlines()[-1] == (
        "torchloom: correct that, or set LOOM_NO_DOCS=1 to install without the manual"
    )
    assert (done.returncode, files(checkout)) == (0, [])


def test_a_build_asks_pip_for_mkdocs_where_it_needs_it_and_there_is_none(checkout: Path) -> None:
    ask = (
        "import sys; sys.path[:0] = ['make']; sys.modules['material'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'material' else real(name, *more)\n"
        "import backend as b; print(b.get_requires_for_build_{}())"
    )

    def wanted(what: str, **more: str) -> str:
        words = [sys.executable, "-c", ask.format(what)]
        env = {**os.environ, "LOOM_NO_DASHBOARD": "1", **more}
        return subprocess.run(
            words, cwd=checkout, env=env, capture_output=True, text=True, check=True
        ).stdout

    assert "mkdocs-material" in wanted("wheel")
    assert "mkdocs-material" in wanted("sdist")
    assert "mkdocs-material" not in wanted("editable")
    assert "mkdocs-material" not in wanted("wheel", LOOM_NO_DOCS="1")
    subprocess.run([sys.executable, "make/docs.py"], cwd=checkout, check=True, capture_output=True)
    assert "mkdocs-material" not in wanted("wheel")  # as of an sdist, which has it built
