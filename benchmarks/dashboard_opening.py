"""How soon a job's page is there, and how soon a chart of a million stored points is drawn."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.dashboard_browser import Site, waits
from benchmarks.dashboard_trace import Trace
from benchmarks.figure import CannotMeasure, Figure, Lab, once, series

if TYPE_CHECKING:
    from playwright.sync_api import Page

JOB, POINTS = "million", 1_000_000
MARK = "bench-opened"
COUNTED = """() => {
  const sub = window.__loom?.subs().find(({ topic }) => topic === "series");
  const curves = (sub && window.__loom.state(sub.id)?.series) ?? [];
  return curves.flatMap(({ counts }) => counts).reduce((sum, count) => sum + count, 0);
}"""


def figures(lab: Lab, site: Callable[[], Site]) -> list[Figure]:
    """Return the figures of opening."""

    @once
    def opened() -> dict[str, list[float]]:
        with site().rank(JOB, 1, POINTS):
            pages = [paint(site()) for _ in range(lab.n + 1)][1:]  # the first warms the server
            charts = click(site(), lab.n)
        return {
            "paint": [first for first, _ in pages],
            "curve": [drawn for _, drawn in pages],
            "chart": charts,
        }

    first = series("the job's page, nothing cached", lambda: opened()["paint"])
    curve = series("the same", lambda: opened()["curve"])
    chart = series(f"a click on a job with {POINTS:,} points", lambda: opened()["chart"])
    return [
        Figure("first-paint", "ms to the first paint with content", first),
        Figure("first-curve", "ms until its curve is drawn, too", curve),
        Figure("chart-open", "ms from the click to the drawn chart", chart),
    ]


def paint(site: Site) -> tuple[float, float]:
    """Open a job's page; return milliseconds to its first paint, and until the curve is drawn."""
    with site.visit() as page:

        def come() -> None:
            page.goto(f"{site.url}/jobs/{JOB}")
            drawn(page)
            page.evaluate(f"performance.mark('{MARK}')")

        trace = Trace(site.traced(page, come), MARK)
        return trace.first_paint() * 1000, float(page.evaluate("__bench.drawn"))


def click(site: Site, count: int) -> list[float]:
    """Click on the job in the list, again and again; return milliseconds until it is drawn."""
    found = []
    with site.visit() as page:
        page.goto(f"{site.url}/jobs")
        for _ in range(count + 1):
            page.locator(f'[data-job="{JOB}"]').wait_for()
            page.wait_for_timeout(2000)  # what came before is over
            page.locator(f'[data-job="{JOB}"]').get_by_role("link").click()
            drawn(page)
            if page.evaluate(COUNTED) < POINTS:
                raise CannotMeasure("the chart does not have all points")
            found.append(float(page.evaluate("__bench.drawn - __bench.clicked")))
            page.go_back()
    return found[1:]


def drawn(page: "Page") -> None:
    waits(page, lambda: page.evaluate("window.__bench?.drawn"), "a chart is drawn")
