"""A plane that shows the dashboard, a job that trains under it, and a browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..control.conftest import living
from ..harness.dashboard_build import built
from ..harness.home import until
from ..harness.http_door import Door, door_of_admin
from ..harness.plane_jobs import Plane, loom
from ..harness.warm_zygote import borrow, hearth
from .showing import PATIENCE, points
from .views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

__all__ = ["hearth"]

WORLD = 2
SCRIPT = Path(__file__).with_name("scripts") / "learn.py"
VARIABLES = (("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shown")
    for name in ("loom", "run", "work"):
        (made / name).mkdir(mode=0o700)
    return made


@pytest.fixture(scope="module")
def plane(folder: Path, hearth: Path) -> Iterator[Plane]:
    """Give a module its plane, which serves what was built; nothing of it is left behind."""
    dist, why = built()
    assert dist is not None, why
    with pytest.MonkeyPatch.context() as patch:
        borrow(hearth, folder / "run", patch)
        for variable, name in VARIABLES:
            patch.setenv(variable, str(folder / name))
        for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            patch.delenv(variable, raising=False)
        patch.setenv("LOOM_DASHBOARD", str(dist))
        patch.setenv("LOOM_DEVICES", "cpu:4")
        patch.chdir(folder / "work")
        loom("up")
        yield Plane()
        loom("down")
        until(lambda: not living(folder), PATIENCE)


@pytest.fixture(scope="module")
def door(plane: Plane) -> Door:
    return door_of_admin()


@pytest.fixture(scope="module")
def browser(door: Door) -> Iterator["Browser"]:
    """Give a browser; its loop is this thread's, so all that begins one of its own is up before."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or "chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visitor(browser: "Browser") -> Iterator["BrowserContext"]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """Return where the ranks write down what they do."""
    made = folder / "out"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def job(door: Door, out: Path) -> Iterator[str]:
    """Give a job that trains, whatever tests do to it; it is ended after them."""
    shutil.copy(SCRIPT, out)
    spec = {
        "name": "shown",
        "script": "learn.py",
        "env": {"OUT": str(out)},
        "resources": {"workers": WORLD},
        "recovery": {"policy": "live"},
    }
    made = door.submit(spec, out)
    yield made
    loom("stop", "--now", made)


@pytest.fixture(scope="module")
def many(door: Door, out: Path) -> str:
    """Return a job that has logged more steps than a chart has buckets, and is over."""
    shutil.copy(SCRIPT.with_name("many.py"), out)
    made = door.submit({"name": "many", "script": "many.py", "resources": {"workers": 1}}, out)
    door.ends(made)
    return made


@pytest.fixture(scope="module")
def views(door: Door, job: str, out: Path) -> tuple[str, ...]:
    """Return the addresses of all views, of a job that has lived and of one that has failed."""
    shutil.copy(SCRIPT.with_name("broken.py"), out)
    ended = door.submit({"name": "broken", "script": "broken.py", "resources": {"workers": 2}}, out)
    door.ends(ended)
    until(lambda: "lr" in knobs(door, job) and len(points(door, job, "loss", 0)) > 20, PATIENCE)
    loom("set", job, "lr=0.04", "--wait", "60", "--reason", "to have something to undo")
    loom("checkpoint", job)
    return tuple(view.format(job=job, ended=ended) for view in VIEWS)


def knobs(door: Door, job: str) -> set[str]:
    """Return what can be changed of a job."""
    return {knob["name"] for knob in door.ask(f"/api/jobs/{job}/knobs")["items"]}
