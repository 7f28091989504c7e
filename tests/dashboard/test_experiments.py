"""Experiments and submitting in a real browser over a real plane: what is shown is so."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ..harness.home import until
from ..harness.http_door import Door
from ..harness.plane_jobs import Plane, loom
from .showing import PATIENCE, Shown

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("torch", "browser", "dashboard")),
]
SCRIPT = Path(__file__).with_name("scripts") / "tune.py"
HALF, WHOLE = 20, 40  # steps of a run before it waits, and in all
SERIES = """() => window.__loom.subs()
  .filter((one) => one.topic === "series")
  .map((one) => [one.job, window.__loom.state(one.id)?.series ?? []])"""
SECRET = "hush-hush-0815"


@pytest.fixture(scope="module")
def runs(door: Door, out: Path) -> Iterator[list[str]]:
    """Begin two runs that differ in what they are given; give them when both wait half-way."""
    shutil.copy(SCRIPT, out)
    made = []
    for values in ({"lr": 0.1, "opt": {"name": "sgd", "nesterov": True}}, {"lr": 0.2}):
        more = {"hyperparameters": {**values, "seed": 3}, "tags": ["tuned"]}
        env = {"OUT": str(out)}
        made.append(door.submit({"name": "tune", "script": "tune.py", "env": env, **more}, out))
    for run in made:
        until(lambda run=run: len(stored(door, run)) >= HALF, PATIENCE)
    yield made
    (out / "go").touch()
    for run in made:
        door.ends(run)


def stored(door: Door, run: str) -> dict[int, float]:
    """Return the points of a run's loss by the API."""
    return {step: value for rank, step, value in door.points(run, "loss") if rank == 0}


def written(out: Path, run: str) -> dict[int, float]:
    """Return what a run itself wrote of its losses."""
    lines = (out / f"losses-{run}").read_text().splitlines()
    return dict(json.loads(line) for line in lines)


def drawn(shown: Shown) -> dict[str, dict[int, float]]:
    """Return the loss that the page holds of each run."""
    found = shown.page.evaluate(SERIES)
    return {
        run: dict(zip(curve["steps"], curve["last"], strict=True))
        for run, curves in found
        for curve in curves
        if curve["name"] == "loss"
    }


def enter(visitor: "BrowserContext", door: Door, user: str, role: str, path: str) -> Shown:
    """Come in by a link, then go to a page."""
    shown = Shown(visitor, door)
    shown.page.goto(loom("tokens", "link", user, "--role", role).split()[-1])
    shown.page.wait_for_url(f"{door.url}/")
    shown.page.goto(f"{door.url}{path}")
    shown.part("live-dot", '[data-state="live"]').wait_for()
    return shown


def test_runs_are_sorted_found_and_compared_by_what_differs_and_their_curves_go_on(
    visitor: "BrowserContext", door: Door, runs: list[str], out: Path
) -> None:
    shown = enter(visitor, door, "vera", "viewer", "/experiments?q=tag:tuned&sort=-config:lr")
    shown.part("run-row", f'[data-run="{runs[0]}"]').wait_for()
    asked = door.ask("/api/experiments", tag="tuned", sort="-config:lr")["items"]
    assert listed(shown) == [run["run_id"] for run in asked] == runs[::-1]
    assert shown.page.get_by_role("link", name="Submit", exact=True).count() == 0

    for run in runs:
        shown.part("run-row", f'[data-run="{run}"]').get_by_role("checkbox").check()
    shown.part("compare").click()
    shown.page.wait_for_url(f"{door.url}/experiments/compare?run={runs[0]}&run={runs[1]}")
    shown.part("diff-row", '[data-part="Config"]').first.wait_for()

    assert differing(shown) == {
        "lr": ["0.1", "0.2"],
        "opt.name": ["sgd", "not set"],
        "opt.nesterov": ["true", "not set"],
    }
    shown.waits(lambda: drawn(shown) == {run: stored(door, run) for run in runs})
    (out / "go").touch()
    for run in runs:
        shown.part("compared-run", f'[data-run="{run}"][data-state="COMPLETED"]').wait_for()
    shown.waits(lambda: [len(points) for points in drawn(shown).values()] == [WHOLE, WHOLE])
    assert drawn(shown) == {run: stored(door, run) for run in runs}
    assert drawn(shown) == {run: written(out, run) for run in runs}
    assert (shown.strangers(), shown.wrong) == ([], [])


def listed(shown: Shown) -> list[str | None]:
    """Return the runs of the table, from its top."""
    rows = [
        (one.bounding_box(), one.get_attribute("data-run")) for one in shown.part("run-row").all()
    ]
    return [run for box, run in sorted(rows, key=lambda row: row[0]["y"] if row[0] else 0.0)]


def differing(shown: Shown) -> dict[str | None, list[str]]:
    """Return the config that the page says differs, with the value of each run."""
    rows = shown.part("diff-row", '[data-part="Config"]').all()
    return {
        row.get_attribute("data-name"): row.get_by_test_id("diff-value").all_text_contents()
        for row in rows
    }


def test_a_job_of_the_form_runs_a_bad_field_is_refused_beside_it_and_secrets_stay_hidden(
    visitor: "BrowserContext", door: Door, plane: Plane, out: Path
) -> None:
    shown = enter(visitor, door, "olga", "operator", "/submit")
    if os.geteuid() == 0:  # a plane of root runs jobs of people as their accounts
        loom("tokens", "user", "olga", "--role", "admin", "--run-as", "root")
    code = "import os; open('formed', 'w').write(os.environ['LOOM_JOB'])"
    fill(shown, "name", "formed")
    fill(shown, "command", f"{sys.executable}\n-c\n{code}")
    shown.page.locator('input[data-path="cwd"]').fill(str(out))
    shown.page.get_by_text("Workers", exact=True).click()
    fill(shown, "resources.workers", "0")

    part = shown.part("spec-part", '[data-path="resources.workers"][data-wrong]')
    part.get_by_text(refusal(door, {"resources": {"workers": 0}})).wait_for()
    assert shown.part("spec-part", "[data-wrong]").count() == 1
    shown.part("submit").click()
    part.wait_for()
    assert door.ask("/api/jobs", name="formed")["items"] == []

    text = shown.part("spec-text")
    shown.waits(lambda: "workers: 0" in text.input_value())
    env = f"env: {{API_TOKEN: {SECRET}}}\n"
    text.fill(text.input_value().replace("workers: 0", "workers: 1") + env)
    shown.waits(lambda: field(shown, "resources.workers").input_value() == "1")
    shown.part("spec-part", "[data-wrong]").wait_for(state="detached")
    shown.part("submit").click()
    shown.page.wait_for_url(f"{door.url}/jobs/*")

    job = shown.page.url.rpartition("/")[2]
    door.ends(job)
    assert (out / "formed").read_text() == job
    assert door.ask(f"/api/jobs/{job}/spec")["env"] == {"API_TOKEN": SECRET}
    shown.page.get_by_role("link", name="Spec", exact=True).click()
    shown.part("submit-again").click()
    shown.page.get_by_text("API_TOKEN").first.wait_for()
    assert field(shown, "name").input_value() == "formed"
    shown.waits(lambda: "name: formed" in text.input_value())
    assert SECRET not in shown.page.content() + text.input_value()
    assert (shown.strangers(), refused(shown.wrong)) == ([], [])


def field(shown: Shown, path: str) -> Any:
    return shown.page.locator(f'input[data-path="{path}"], textarea[data-path="{path}"]')


def fill(shown: Shown, path: str, text: str) -> None:
    field(shown, path).fill(text)


def refusal(door: Door, more: dict[str, Any]) -> str:
    """Return what the API says of a spec that has this in it."""
    headers = {"Authorization": f"Bearer {door.token}"}
    body = {"name": "formed", "command": ["true"], **more}
    with httpx.Client(base_url=door.url, headers=headers, trust_env=False) as client:
        answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 422
    return str(answer.json()["remedy"])


def refused(said: list[str]) -> list[str]:
    """Return what the console complains of, but for the answer that was asked for."""
    return [one for one in said if "422" not in one]
