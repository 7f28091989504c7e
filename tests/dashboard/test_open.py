"""`loom open`: from a shell to a job's page in a browser, signed in; nothing is left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from torchloom.settings import user_name

from ..cli.test_json import problems
from ..harness.home import until
from ..harness.http_door import Door
from ..harness.plane_jobs import LOOM, Plane
from .showing import PATIENCE

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("browser", "dashboard")),
]
FOLLOW = Path(__file__).with_name("scripts") / "follow.py"
NO_DISPLAY = dict.fromkeys(("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"), "")


def loom(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [LOOM, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **NO_DISPLAY, **env},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def started(plane: Plane, door: Door, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Return what `loom run -d` said of a job that is over by now."""
    (folder / "work" / "short.py").write_text("print('trained')\n")
    done = loom("run", "-d", "short.py")
    door.ends(done.stdout.strip().rpartition("/")[2])
    return done


def test_a_browser_is_led_to_the_job_by_a_file_that_nobody_else_reads_and_that_is_gone(
    plane: Plane,
    door: Door,
    folder: Path,
    started: "subprocess.CompletedProcess[str]",
    tmp_path: Path,
) -> None:
    job = started.stdout.strip().rpartition("/")[2]
    browser = tmp_path / "follow"
    browser.write_text(f'#!/bin/sh\nexec {sys.executable} {FOLLOW} "$@"\n')
    browser.chmod(0o700)
    seen = tmp_path / "seen.json"

    done = loom("open", job, BROWSER=str(browser), SEEN=str(seen))
    until(seen.exists, PATIENCE)

    found = json.loads(seen.read_text())
    assert done.stdout == f"{door.url}/jobs/{job}\n"
    assert (found["url"], found["me"]["user"]) == (f"{door.url}/jobs/{job}", user_name())
    assert (found["mode"], found["shown"]) == (0o600, [])
    assert len(found["code"]) > 30
    assert found["given"].startswith(f"file://{folder}/run/")
    assert not Path(urlsplit(found["given"]).path).exists()
    assert list((folder / "run").rglob("open-*")) == []


@pytest.mark.parametrize(
    "env", [{}, {"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22", "DISPLAY": ":0", "BROWSER": "false"}]
)
def test_without_a_display_or_over_ssh_the_link_is_printed(
    env: dict[str, str], plane: Plane, door: Door, started: "subprocess.CompletedProcess[str]"
) -> None:
    done = loom("open", **env)
    told = json.loads(loom("open", "@", "--json", **env).stdout)

    (link,) = done.stdout.splitlines()
    assert link.startswith(f"{door.url}/login#")
    assert ("ssh -L " in done.stderr) == bool(env)
    assert problems("open", told) == []
    assert told["link"].startswith(f"{door.url}/login?job=")


def test_a_run_says_where_its_page_is(
    door: Door, folder: Path, started: "subprocess.CompletedProcess[str]"
) -> None:
    job = started.stdout.strip().rpartition("/")[2]

    followed = loom("run", "short.py").stderr.splitlines()

    page = f"loom: {door.url}/jobs/{job} (`loom open {job}` signs you in)"
    assert page in started.stderr.splitlines()
    other = followed[0].split(":")[1].strip()
    assert followed[1] == f"loom: {door.url}/jobs/{other} (`loom open {other}` signs you in)"
