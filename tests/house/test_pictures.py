"""The pictures show the states, the rooms and the trace that there are."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from torchloom.rules.lifecycle import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("make/pictures.py", "make/svg.py", "pyproject.toml", "docs/evidence/after-a-kill.json")
NAMES = ("architecture", "job-states", "after-a-kill", "rooms")
_SVG = "{http://www.w3.org/2000/svg}"


def check(root: Path) -> int:
    """Ask whether the pictures of a checkout are those of its sources."""
    words = [sys.executable, str(root / "make" / "pictures.py"), "--check"]
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run(words, check=False, env=env, capture_output=True).returncode


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what pictures are made of."""
    for name in PARTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs/pictures", tmp_path / "docs/pictures")
    for name in ("__init__.py", "rules/__init__.py", "rules/lifecycle.py", "specs"):
        path, to = ROOT / "src/torchloom" / name, tmp_path / "src/torchloom" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path, to) if path.is_dir() else shutil.copy(path, to)
    return tmp_path


@pytest.mark.process
def test_the_pictures_are_those_of_their_sources() -> None:
    assert check(ROOT) == 0, "run `make pictures`"


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "src/torchloom/rules/lifecycle.py",
            "JobState.COMPLETED, JobState.RECOVERING,",
            "JobState.COMPLETED,",
        ),
        ("src/torchloom/rules/lifecycle.py", "or state is JobState.PAUSED", ""),
        ("pyproject.toml", '    "runner",\n', ""),
        ("docs/evidence/after-a-kill.json", '"ranks": 4', '"ranks": 5'),
    ],
)
def test_a_picture_that_is_out_of_date_is_found(copy: Path, name: str, old: str, new: str) -> None:
    assert check(copy) == 0
    text = (copy / name).read_text()
    assert old in text

    (copy / name).write_text(text.replace(old, new))

    assert check(copy) == 1


def test_the_picture_of_states_has_every_state_and_says_every_transition() -> None:
    root = ElementTree.parse(ROOT / "docs/pictures/job-states.svg").getroot()
    words = [text.text for text in root.iter(f"{_SVG}text")]
    about = root.findtext(f"{_SVG}desc") or ""
    said = dict(re.findall(r"([A-Z]+) to ([A-Z, ]+)", about))

    assert {state.value for state in TRANSITIONS} <= set(words)
    assert {one: set(to.split(", ")) for one, to in said.items()} == {
        state.value: {to.value for to in tos} for state, tos in TRANSITIONS.items() if tos
    }


def test_the_timeline_shows_the_kill_that_took_as_long_as_the_median() -> None:
    trace = json.loads((ROOT / "docs/evidence/after-a-kill.json").read_text())
    times = sorted(sample["all_done"] for sample in trace["samples"])
    text = (ROOT / "docs/pictures/after-a-kill.svg").read_text()

    assert trace["median"] == times[len(times) // 2]
    assert f"after {trace['median']:.0f} ms, the median of {len(times)} kills" in text


def test_the_timeline_names_the_machine_and_its_load() -> None:
    trace = json.loads((ROOT / "docs/evidence/after-a-kill.json").read_text())
    text = (ROOT / "docs/pictures/after-a-kill.svg").read_text()
    load = f"load average {trace['load']:.1f} before" if "load" in trace else "load not recorded"

    assert f"{trace['machine']}; {load}" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_can_be_read_by_anyone(name: str) -> None:
    text = (ROOT / f"docs/pictures/{name}.svg").read_text()
    root = ElementTree.fromstring(text)

    assert len(root.findtext(f"{_SVG}title") or "") > 10
    assert len(root.findtext(f"{_SVG}desc") or "") > 60
    assert root.get("role") == "img"
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"(href|url\((?!#)|<script|<image)", text)
