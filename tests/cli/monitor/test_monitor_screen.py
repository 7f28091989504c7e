"""The screen of `loom monitor`, driven by keys, over a real weaver."""

import asyncio
import html
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from torchloom.cli.monitor.app import AnswerArrived, Monitor
from torchloom.cli.monitor.panes import DevicesWindow, TextWindow
from torchloom.cli.monitor.prompt import PromptAnswer
from torchloom.cli.monitor.widgets import PromptLine, TableView
from torchloom.client.plane import ask, door, made_folder
from torchloom.launch.host import sockets

from ..monitored import Plane, plane_in

pytestmark = pytest.mark.process  # it takes seconds

SIZES = [(80, 24), (200, 50)]
PATIENCE = 30.0
Act = Callable[[Monitor, Pilot[None]], Awaitable[None]]


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        yield found


@asynccontextmanager
async def opened(size: tuple[int, int], asking: Any) -> AsyncIterator[tuple[Monitor, Any]]:
    app = Monitor(asking)
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def watch(act: Act, size: tuple[int, int] = (80, 24), asking: Any = ask) -> None:
    """Open the screen, do something with it, close it."""

    async def run() -> None:
        async with opened(size, asking) as (app, pilot):
            await act(app, pilot)

    asyncio.run(run())


def lines(app: Monitor) -> list[str]:
    """Return what is on the screen, as the picture of it has it."""
    found: dict[float, str] = {}
    picture = re.sub(r'<text class="[^"]*-title".*?</text>', "", app.export_screenshot())
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', picture):
        at = round(float(x) / 12.2)
        line = found.get(float(y), "").ljust(at)
        found[float(y)] = line[:at] + html.unescape(text).replace("\xa0", " ")
    return [found[y].rstrip() for y in sorted(found)]


def text(app: Monitor) -> str:
    return "\n".join(lines(app))


async def until(happened: Callable[[], object], pilot: Pilot[None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, text(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.02)


def cells(app: Monitor, name: str) -> list[tuple[str, ...]]:
    return [row.cells for row in app.query_one(f"#{name}", TableView).rows]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_jobs_ranks_curves_and_events_are_there_at_a_size(
    size: tuple[int, int], plane: Plane
) -> None:
    plane.job("train-1", ranks=4)
    plane.steps("train-1", 412, 412, 405, 411)
    plane.log("train-1", "loss", *(3 / (n + 1) for n in range(50)))

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "loss" in text(app) and "rank_up" in text(app), pilot)
        await until(lambda: "p pause r resume s set d devices" in text(app), pilot)
        shown = lines(app)

        assert max(map(len, shown)) <= size[0]
        assert len(shown) <= size[1]
        assert re.search(r"^train-1 +RUNNING +405 +4 +\d+s", text(app), re.MULTILINE)
        assert "train-1: 4 up; rank 2 is 7 behind" in text(app)
        assert re.search(r"^   2  up      405    7    12.5 ms  node1", text(app), re.MULTILINE)
        assert re.search(r"loss 0\.06 +rank 0 step 49", text(app))
        assert "█" in text(app)

    watch(act, size)


@pytest.mark.parametrize("size", [(40, 10), (60, 16), (80, 24), (140, 30), (200, 50), (20, 4)])
def test_every_pane_stays_inside_the_terminal_when_it_is_resized(
    size: tuple[int, int], plane: Plane
) -> None:
    plane.job("train-1")
    plane.log("train-1", "loss", 2.0, 1.0)

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "loss" in text(app), pilot)
        await pilot.resize_terminal(*size)
        await pilot.pause(0.1)

        assert max(map(len, lines(app))) <= size[0]
        for name in ("jobs", "ranks", "events"):
            region = app.query_one(f"#{name}").region
            assert region.right <= size[0]
        await pilot.resize_terminal(100, 30)
        await until(lambda: "loss" in text(app), pilot)

    watch(act)


def test_the_cursor_chooses_the_job_whose_ranks_are_shown(plane: Plane) -> None:
    plane.job("train-1", ranks=3)
    plane.job("eval-2", ranks=1)

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "eval-2: 1 up" in text(app), pilot)
        await pilot.press("down")
        await until(lambda: "train-1: 3 up" in text(app), pilot)

        assert [row[0] for row in cells(app, "ranks")] == ["0", "1", "2"]

    watch(act)


def test_a_key_means_the_job_under_the_cursor_before_its_ranks_are_shown(plane: Plane) -> None:
    plane.job("train-1")
    plane.job("eval-2")
    may_go_on = threading.Event()

    def slowly(question: str, *words: Any, **facts: Any) -> Any:
        if (question, facts.get("job")) == ("events", "train-1"):
            may_go_on.wait(PATIENCE)
        return ask(question, *words, **facts)

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "eval-2: 2 up" in text(app), pilot)
        await pilot.press("down", "p")
        await until(lambda: plane.commands(), pilot)
        assert "eval-2: 2 up" in text(app)
        may_go_on.set()
        await until(lambda: "train-1: 2 up" in text(app), pilot)
        await until(lambda: "paused" in text(app), pilot)

        assert plane.commands() == [("train-1", "pause", "applied")]
        await pilot.press("r")
        await until(lambda: "resumed" in text(app), pilot)
        assert plane.commands()[1:] == [("train-1", "resume", "applied")]

    watch(act, asking=slowly)


def test_the_prompt_sets_a_knob_with_tab_and_brings_lines_back(plane: Plane, state: Path) -> None:
    plane.job("train-1")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1" in text(app), pilot)
        await pilot.press("s", "t", "e", "tab")
        await until(lambda: app.query_one(PromptLine).value == "set temperature=", pilot)
        await pilot.press("0", ".", "5", "enter")
        await until(lambda: "temperature 0.1 -> 0.5 at step 2 on ranks 0-1" in text(app), pilot)
        await pilot.press("colon", "up")

        assert app.query_one(PromptLine).value == "set temperature=0.5"
        assert [r.applied[0][2] for r in plane.ranks["train-1"]] == [0.5, 0.5]
        assert (state / "monitor_history").read_text() == "set temperature=0.5\n"
        await pilot.press("escape", "colon", *"set lr=9", "enter")
        await until(lambda: "lr must be at most 1, not 9" in text(app), pilot)
        await pilot.press("colon", *"audit", "enter")
        await until(lambda: "Esc closes" in text(app), pilot)
        assert "temperature 0.1 -> 0.5" in text(app)

    watch(act)


def test_the_prompt_can_choose_another_job_and_leave(plane: Plane) -> None:
    plane.job("train-1")
    plane.job("eval-2")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "eval-2: 2 up" in text(app), pilot)
        await pilot.press("colon", *"use train-1", "enter")
        await until(lambda: "train-1: 2 up" in text(app), pilot)

        assert app.job == "train-1"
        await pilot.press("colon", *"quit", "enter")
        await until(lambda: not app.is_running, pilot)

    watch(act)


def test_news_that_come_before_the_window_of_devices_is_made_are_in_it(plane: Plane) -> None:
    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: len(ask("devices")["devices"]) == len(known), pilot)
        window = DevicesWindow()
        window.show(ask("devices")["devices"])
        await app.push_screen(window)
        await until(lambda: [row.key for row in window.query_one(TableView).rows] == known, pilot)

    known = ["node1/cpu/0", "node1/cpu/1"]

    plane.job("train-1")
    watch(act)


def test_a_device_is_failed_from_its_window_after_a_look_at_the_line(plane: Plane) -> None:
    plane.job("train-1")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1" in text(app), pilot)
        await pilot.press("d")
        await until(lambda: "node1/cpu/1" in text(app), pilot)
        await pilot.press("down", "f")
        await until(lambda: app.query_one(PromptLine).value == "fail_device node1/cpu/1", pilot)
        assert plane.rows("SELECT count(*) FROM devices WHERE state = 'failed'") == [(0,)]
        await pilot.press("enter")
        await until(lambda: "node1/cpu/1 is failed; used by train-1/trainer/1" in text(app), pilot)

        assert plane.rows("SELECT uuid FROM devices WHERE state = 'failed'") == [("node1/cpu/1",)]

    watch(act)


def test_a_thousand_ranks_are_scrolled_filtered_and_ordered(plane: Plane) -> None:
    plane.job("train-1", ranks=1000, knobs=())
    plane.steps("train-1", *(500 - (9 if n == 777 else 0) for n in range(1000)))

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: len(cells(app, "ranks")) == 1000, pilot)
        await pilot.press("tab", "end")
        await until(lambda: re.search(r"^ 999  up", text(app), re.MULTILINE), pilot)
        assert "rank 777 is 9 behind" in text(app)
        await pilot.press("slash", *"77")
        await until(lambda: [row[0] for row in cells(app, "ranks")] == ["77"], pilot)
        assert "1 of 1000 shown" in text(app)
        await pilot.press("escape", "o", "home")
        await until(lambda: len(cells(app, "ranks")) == 1000, pilot)

        assert cells(app, "ranks")[0][:4] == ("777", "up", "491", "9")
        assert re.search(r"^ 777  up", text(app), re.MULTILINE)
        began = time.thread_time()
        for _ in range(20):
            app._draw()
        assert (time.thread_time() - began) / 20 < 0.2  # of each second

    watch(act)


def test_a_plane_that_goes_away_is_shown_and_found_again(plane: Plane) -> None:
    plane.job("train-1")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1: 2 up" in text(app), pilot)
        await asyncio.to_thread(plane.down)
        await until(lambda: "no plane runs here; `loom up` starts one" in text(app), pilot)
        assert "train-1: 2 up" in text(app)
        await asyncio.to_thread(plane.up)
        await until(lambda: "no plane" not in text(app), pilot)

        assert "epoch 2" in text(app)

    watch(act)


def test_without_a_plane_the_screen_opens_and_says_what_to_do() -> None:
    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "no plane runs here; `loom up` starts one" in text(app), pilot)

        assert "no jobs yet" in text(app)

    watch(act)


def test_a_plane_that_never_answers_keeps_nobody_from_reading_or_leaving(state: Path) -> None:
    made_folder()
    with sockets.listen(door()):

        async def act(app: Monitor, pilot: Pilot[None]) -> None:
            await pilot.press("colon", *"pause", "enter")
            await pilot.press("question_mark")
            assert "p  pause the job" in text(app)

        began = time.monotonic()
        watch(act)

        assert time.monotonic() - began < PATIENCE / 2


def test_names_from_outside_cannot_move_the_cursor_or_forge_markup(plane: Plane) -> None:
    plane.job("train-1", ranks=1)
    plane.log("train-1", "[red]loss\x1b[2J", 1.0, 2.0)

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "[red]loss?[2J 2" in text(app), pilot)

    watch(act)


def test_an_answer_that_comes_while_something_is_read_is_there_afterwards(plane: Plane) -> None:
    plane.job("train-1")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1: 2 up" in text(app), pilot)
        await pilot.press("question_mark")
        await until(lambda: "Esc closes" in text(app), pilot)
        app.post_message(AnswerArrived("x", PromptAnswer("an answer"), "", ""))
        await pilot.pause(0.1)
        await pilot.press("escape")

        await until(lambda: "an answer" in text(app), pilot)

    watch(act)


def test_brackets_in_a_line_or_an_answer_are_no_markup() -> None:
    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await app.push_screen(TextWindow("set betas=[0.8,0.9] [/x]", "one [bold]\ntwo [/y]"))
        await until(lambda: "Esc closes" in text(app), pilot)

        assert "set betas=[0.8,0.9] [/x]" in text(app)
        assert "one [bold]" in text(app)
        assert "two [/y]" in text(app)

    watch(act)


def test_the_newest_active_job_is_looked_at_first_and_ended_ones_are_not(plane: Plane) -> None:
    plane.job("train-1")
    plane.job("eval-2")
    plane.end("eval-2", "FAILED", "exit_code_1_rank_0")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1: 2 up" in text(app), pilot)
        await pilot.pause(0.3)

        assert [row[:2] for row in cells(app, "jobs")] == [
            ("eval-2", "FAILED"),
            ("train-1", "RUNNING"),
        ]
        assert app.job == "train-1"

    watch(act)


def test_help_closes_again_and_escape_forgets_a_filter(plane: Plane) -> None:
    plane.job("train-1")

    async def act(app: Monitor, pilot: Pilot[None]) -> None:
        await until(lambda: "train-1" in text(app), pilot)
        await pilot.press("question_mark")
        await until(lambda: "behind the fastest" in " ".join(lines(app)), pilot)
        await pilot.press("q")
        await pilot.press("slash", *"nothing", "enter")
        await until(lambda: "1 hidden by the filter" in text(app), pilot)
        await pilot.press("escape")
        await until(lambda: "hidden" not in text(app), pilot)

        assert app.is_running

    watch(act)
