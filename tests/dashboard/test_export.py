"""A run in one file, opened from a disk by a browser that has no network: what it draws is what the
plane has stored, nothing is asked of anybody, and nothing that was logged is run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchloom.cli.main import main
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.specs.api import AppState
from torchloom.weaver.store.rows import CheckpointRow, EventRow, RankProcessRow

from ..cli.export.exported import HOSTILE, log, remembered, store_of, within
from ..harness.dashboard_build import built
from ..harness.metric_rows import in_file, replaced_in_file
from .showing import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.process, pytest.mark.needs("browser"), pytest.mark.needs("dashboard")]
JOB, STEPS, SPIKE = "shown-1", 400, 123
REPEATED = "train/repeated"
# Which part of a chart's columns has some of the curve in its upper half: a lone peak has few.
UPPER = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, Math.floor(height / 2));
  const isBlue = (at) => data[at + 3] > 0 && data[at + 2] > data[at] + 60;
  const columns = new Set();
  for (let at = 0; at < data.length; at += 4) if (isBlue(at)) columns.add((at / 4) % width);
  return columns.size / width;
}"""


class Opened:
    """The file in a browser, and all that it asked for or complained of."""

    def __init__(self, page: "Page", path: Path) -> None:
        self.page, self.path = page, path
        self.asked: list[str] = []
        self.wrong: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._complains)
        page.goto(path.as_uri())

    def _complains(self, said: Any) -> None:
        if said.type == "error":
            self.wrong.append(said.text)

    def strangers(self) -> list[str]:
        """Return what was asked for beyond the file."""
        ours = ("data:", self.path.as_uri())
        return [url for url in self.asked if not url.startswith(ours)]

    def chart(self, name: str) -> Any:
        return self.page.get_by_role("article", name=name, exact=True)


def put_folder(home: Path) -> None:
    """Write the folder of a run that failed; its rank has printed hostile things."""
    logs = home / "runs" / JOB / "logs"
    rank = RankRecord("trainer", 0, 0, 0, AppState.FAILED, exit_code=1, logs="trainer/0")
    record = RunRecord(
        JOB, "shown", "torchx", "ada", "host", str(logs), now(),
        AppState.FAILED, "rank_failed", started_at=now(), ended_at=now(), ranks=(rank,),
        first_error={"rank": 0, "message": HOSTILE, "traceback": HOSTILE},
    )  # fmt: skip
    role = RoleRequest("trainer", (ReplicaRequest(("true",), {}),), 1, False)
    request = LaunchRequest(JOB, "shown", "torchx", "/", str(logs), (role,))
    RunFolder.create(request, {"name": "shown", "roles": []}, record).publish()
    (logs / "trainer/0").mkdir(parents=True)
    (logs / "trainer/0" / "stdout.log").write_text(f"{HOSTILE}\nthe last line\n")


def put_stored(home: Path) -> None:
    """Have a plane remember the run: curves with a spike, a change of a knob, a checkpoint."""
    store = store_of(home)
    knobs = [{"name": HOSTILE, "value": HOSTILE}, {"name": "lr", "value": 1.0}]
    remembered(
        store,
        JOB,
        RankProcessRow(JOB, "trainer", 0, 1, "i", knobs=knobs, state="gone"),
        CheckpointRow(
            JOB, 200, 1, 1, "committed", bytes=10, created_at=1040.0, committed_at=1041.0
        ),
        state="FAILED",
        reason="rank_failed",
    )
    facts = {"kind": "knob", "payload": {"lr": {"value": 0.1}}, "command": "c1"}
    facts |= {"before": 1.0, "after": 0.1}
    store.state.put(EventRow(1, 1020.0, JOB, "command_applied", -1, 100, "eve", HOSTILE, facts))
    values = [(n, 1000.0 + n / 8, 50.0 if n == SPIKE else n % 8 / 8) for n in range(1, STEPS + 1)]
    log(store, JOB, ["train/loss"], values)
    log(store, JOB, [HOSTILE], [(1, 1001.0, 2.0), (2, 1002.0, 3.0)])
    log(store, JOB, [REPEATED], [(n, 1000.0 + n, 2.0) for n in range(1, 11)])
    log(store, JOB, [REPEATED], [(n, 1020.0 + n, n / 10) for n in range(6, 11)], generation=2)
    store.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file as the command writes it, where no plane is."""
    dist, why = built()
    assert dist is not None, why
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            (folder / name).mkdir(mode=0o700)
            patch.setenv(variable, str(folder / name))
        patch.setenv("LOOM_DASHBOARD", str(dist))
        put_folder(folder / "loom")
        put_stored(folder / "loom")
        assert main(["export", JOB, "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def context() -> Iterator["BrowserContext"]:
    """Give a browser that has no network."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or "chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        browser.close()


@pytest.fixture
def opened(context: "BrowserContext", file: Path) -> Iterator[Opened]:
    """Give the file as it opens; whatever a test does there, nobody is asked for anything."""
    found = Opened(context.new_page(), file)
    yield found
    assert (found.strangers(), found.wrong) == ([], [])
    found.page.close()


def test_what_is_drawn_is_what_is_stored(opened: Opened, file: Path) -> None:
    stored = in_file(file.parent / "loom" / "plane" / "records.db")
    points = {place[-1]: point for place, point in stored.items() if place[1] == "train/loss"}
    chart = opened.chart("train/loss")
    chart.locator("canvas").wait_for()

    opened.page.wait_for_function(
        f"canvas => ({UPPER})(canvas) > 0", arg=chart.locator("canvas").element_handle()
    )
    upper = chart.locator("canvas").evaluate(UPPER)
    toggle = opened.page.locator('[data-view="table"]').last
    toggle.click()
    rows = chart.locator("tbody tr").all_inner_texts()
    toggle.click()

    cells = [row.replace("\u202f", "").split("\t") for row in rows]
    assert [(int(step), float(last)) for step, _, last, *_ in cells] == [
        (step, point.value) for step, point in sorted(points.items())
    ]
    assert 0 < upper < 0.2  # the spike is there, far above all others
    assert within(file.read_text())["runs"][0]["job"]["id"] == JOB


def test_the_whole_story_is_there(opened: Opened) -> None:
    page = opened.page
    page.get_by_test_id("facts").wait_for()

    knob = page.get_by_label("What happened").locator('li[data-kind="knob"]').inner_text()
    shown = {name: page.get_by_test_id(name).count() for name in ("rank", "checkpoint", "log-tail")}

    assert page.get_by_test_id("job-state").get_attribute("data-state") == "FAILED"
    assert page.get_by_test_id("job-reason").inner_text() == "rank_failed"
    assert ("lr 1 -> 0.1 by eve" in knob, "step 100" in knob) == (True, True)
    assert shown == {"rank": 1, "checkpoint": 1, "log-tail": 1}
    assert page.get_by_test_id("log-tail").locator("li").last.inner_text().endswith("the last line")
    assert page.get_by_label("First error: rank 0").locator("p").inner_text() == HOSTILE


def test_charts_zoom_smooth_and_turn_their_axis_and_the_address_has_it(opened: Opened) -> None:
    page, charts = opened.page, opened.page.get_by_label("Charts", exact=True)
    over = opened.chart("train/loss").locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 50, steps=4)
    page.mouse.up()
    page.wait_for_url("**zoom=**")
    charts.get_by_role("button", name="Log").click()
    charts.get_by_test_id("axis").select_option("relative")
    page.wait_for_url(lambda url: "x=relative" in url and "y=log" in url)
    charts.get_by_label("Smooth").fill("0.5")
    page.wait_for_url("**smooth=0.5**")

    opened.chart("train/loss").locator("canvas").wait_for()
    assert "zoom=" not in page.url  # a range of steps is none of seconds


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_switch_that_keys_reach_shows_what_was_replaced(
    opened: Opened, file: Path, theme: Any
) -> None:
    page, chart = opened.page, opened.chart(REPEATED)
    page.emulate_media(color_scheme=theme)
    kept = replaced_in_file(file.parent / "loom" / "plane" / "records.db")
    canvas = chart.locator("canvas")
    chart.scroll_into_view_if_needed()
    page.wait_for_function(f"canvas => ({UPPER})(canvas) > 0", arg=canvas.element_handle())
    before, switch = canvas.evaluate(UPPER), page.get_by_test_id("replaced")

    switch.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        f"([canvas, before]) => ({UPPER})(canvas) > before + 0.1",
        arg=[chart.locator("canvas").element_handle(), before],
    )
    pressed = switch.get_attribute("aria-pressed")
    page.locator('[data-view="table"]').last.click()
    tables = chart.locator("table").all()
    rows = [table.locator("tbody tr").all_inner_texts() for table in tables]
    captions = [table.locator("caption").inner_text() for table in tables]

    assert (switch.count(), switch.inner_text(), pressed) == (1, "Show replaced points", "true")
    assert captions == ["rank 0", "rank 0, replaced (generation 1)"]
    assert [(int(row.split("\t")[0]), float(row.split("\t")[2])) for row in rows[1]] == [
        (place[-1], its[1].value) for place, its in sorted(kept.items()) if place[1] == REPEATED
    ]
    assert len(rows[1]) == 5
    switch.press("Enter")
    assert (switch.get_attribute("aria-pressed"), chart.locator("table").count()) == ("false", 1)


def test_nothing_was_asked_of_anybody_and_nothing_logged_was_run(opened: Opened) -> None:
    opened.page.get_by_test_id("log-tail").wait_for()

    pwned = opened.page.evaluate("window.pwned")

    assert (pwned, opened.strangers(), opened.wrong) == (None, [], [])
    assert opened.chart(HOSTILE).count() == 1
    assert opened.page.get_by_text(HOSTILE).count() >= 4
