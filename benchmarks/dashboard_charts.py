"""What fifty charts cost that are in view together and get ten updates a second each."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.dashboard_browser import Site, waits
from benchmarks.dashboard_trace import Trace, Window, windows
from benchmarks.figure import CannotMeasure, Figure, Lab, once, series

if TYPE_CHECKING:
    from playwright.sync_api import Page

JOB, CHARTS, RATE = "fifty", 50, 10
STORED = 5000  # steps that each chart begins with: more than it has buckets
LOOKS, LOOK = 12, 2.0  # windows, and seconds of each
SLACK = 5  # updates that may be on their way at either end
WIDTH, HEIGHT = 1920, 4200  # all are in view
MARK = "bench-charts"
LAST = """() => window.__loom.subs().filter(({ topic }) => topic === "series").map(
  ({ id }) => window.__loom.state(id)?.series[0]?.steps.at(-1) ?? 0)"""


def figures(lab: Lab, site: Callable[[], Site]) -> list[Figure]:
    """Return the figures of live charts; all are of one trace."""

    @once
    def seen() -> list[Window]:
        seconds = int(LOOKS * LOOK) + 60
        with site().rank(JOB, CHARTS, STORED, RATE, seconds * RATE) as rank:
            rank.begin()
            return observe(site())

    def taken(of: Callable[[Window], float]) -> Callable[[], list[float]]:
        return lambda: [of(each) for each in seen()]

    command = f"{CHARTS} charts, {RATE} updates a second"
    busy = series(command, taken(lambda each: 100 * each.busy))
    cpu = series(command, taken(lambda each: 100 * each.cpu))
    task = series(command, taken(lambda each: 1000 * each.longest))
    task_cpu = series(command, taken(lambda each: 1000 * each.longest_cpu))
    return [
        Figure("charts-busy", "% of the time, the main thread", busy),
        Figure("charts-cpu", "% of a core, the main thread", cpu),
        Figure("charts-longest-task", "ms, of a window", task),
        Figure("charts-longest-task-cpu", "ms on a processor, of a window", task_cpu),
    ]


def observe(site: Site) -> list[Window]:
    """Return what the page's main thread did, by window."""
    with site.visit(WIDTH, HEIGHT) as page:
        page.goto(f"{site.url}/jobs/{JOB}/charts")
        waits(page, lambda: len([x for x in page.evaluate(LAST) if x]) == CHARTS, "all charts")
        page.wait_for_timeout(8000)  # what opening costs is not of the figure

        def look() -> None:
            page.evaluate(f"performance.mark('{MARK}')")
            follow(page, LOOKS * LOOK)

        trace = Trace(site.traced(page, look), MARK)
    return windows(trace.tasks(), trace.mark, LOOK, LOOKS)


def follow(page: "Page", seconds: float) -> None:
    """Let time pass; every chart must have had all updates."""
    began, before = time.monotonic(), page.evaluate(LAST)
    page.wait_for_timeout(1000 * seconds)
    after, took = page.evaluate(LAST), time.monotonic() - began
    had = [now - then for now, then in zip(after, before, strict=True)]
    if not all(abs(each - RATE * took) <= SLACK for each in had):
        raise CannotMeasure(f"charts had {min(had)} to {max(had)} updates in {took:.1f} s")
