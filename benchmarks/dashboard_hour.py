"""What an hour of updates leaves behind in a page, played ten times as fast."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.dashboard_browser import Site, waits
from benchmarks.dashboard_opening import COUNTED, drawn
from benchmarks.figure import Figure, Lab, once, series

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

JOB, NAMES = "hour", 5
UPDATES, RATE = 36_000, 100  # ten a second for an hour
LOOKS = 10
STORED = 5000  # steps that are there when the page comes


def figures(lab: Lab, site: Callable[[], Site]) -> list[Figure]:
    """Return the figure of the hour."""

    @once
    def grown() -> list[float]:
        with (
            site().rank(JOB, NAMES, STORED, RATE, UPDATES // LOOKS) as rank,
            site().visit() as page,
        ):
            page.goto(f"{site().url}/jobs/{JOB}")
            drawn(page)
            page.wait_for_timeout(2000)
            memory = page.context.new_cdp_session(page)
            before, found = held(memory), []
            for number in range(1, LOOKS + 1):
                rank.begin()
                rank.hears("told")
                heard(page, STORED + number * UPDATES // LOOKS)
                found.append((held(memory) - before) / 1e6)
            return found

    heap = series(f"{UPDATES:,} updates, {RATE} a second", grown)
    return [Figure("heap-growth", "MB of JavaScript's heap, after each tenth of them", heap)]


def heard(page: "Page", points: int) -> None:
    """Come back when the page has all points."""
    waits(page, lambda: page.evaluate(COUNTED) >= points, f"{points} points are in the chart")


def held(memory: "CDPSession") -> float:
    """Return the bytes that are in use when nothing is left to collect."""
    for _ in range(3):
        memory.send("HeapProfiler.collectGarbage")
    return float(memory.send("Runtime.getHeapUsage")["usedSize"])
