"""A plane that serves the dashboard, a browser in it, and ranks that tell numbers from outside."""

import contextlib
import dataclasses
import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import planes
from benchmarks.cli import run
from benchmarks.figure import CannotMeasure, Lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds
CATEGORIES = ("devtools.timeline", "disabled-by-default-devtools.timeline", "loading")
MARKS = "blink.user_timing"

# Notes when somebody clicked, and when the frame with a curve in it was made: the curve's line is
# the only path that uPlot strokes, and the next frame begins when this one is done.
WATCH = """(() => {
  const watch = (window.__bench = { clicked: 0, drawn: 0, strokes: 0 });
  const note = ({ timeStamp }) => Object.assign(watch, { clicked: timeStamp, drawn: 0 });
  addEventListener("click", note, true);
  const { stroke } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.stroke = function (...path) {
    stroke.apply(this, path);
    if (!path.length) return;
    watch.strokes += 1;
    if (!watch.drawn) requestAnimationFrame((now) => (watch.drawn ||= performance.now()));
  };
})()"""


@functools.cache
def built() -> Path:
    """Return the dashboard of the present sources, built if need be."""
    words = [sys.executable, str(ROOT / "make" / "dashboard.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(done.stderr.strip())
    return Path(done.stdout.strip())


class Site:
    """A plane with the dashboard, and a browser that somebody has come in with."""

    def __init__(self, lab: Lab) -> None:
        env = {**lab.env, "LOOM_DASHBOARD": str(built())}
        self._lab = dataclasses.replace(lab, env=env)
        self.plane = lab.at_end.enter_context(planes.up(self._lab))
        self.url = str(self.plane.facts["url"])
        if not self.url.startswith("http"):
            raise CannotMeasure(f"the plane serves no HTTP: {self.plane.facts.get('note')}")
        self.browser: Browser = lab.at_end.enter_context(chromium())
        self._cookies = self._entered()

    def _entered(self) -> Any:
        words = ("tokens", "link", "bench", "--role", "operator")
        link = run(self._lab.ours / "loom", *words, env=self.plane.env).split()[-1]
        context = self.browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.wait_for_url(f"{self.url}/", timeout=PATIENCE * 1000)
        state = context.storage_state()
        context.close()
        return state

    @contextlib.contextmanager
    def visit(self, width: int = 1440, height: int = 900) -> Iterator["Page"]:
        """Give a page of a browser that has nothing in its cache and is let in."""
        size: Any = {"width": width, "height": height}
        context: BrowserContext = self.browser.new_context(
            viewport=size, storage_state=self._cookies
        )
        context.add_init_script(WATCH)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        try:
            yield page
        finally:
            context.close()

    @contextlib.contextmanager
    def rank(
        self, job: str, names: int, stored: int, rate: float = 1, count: int = 1
    ) -> Iterator["Telling"]:
        """Give a rank that tells numbers, when what it begins with is stored."""
        host, port = self.plane.server
        words = [host, port, self.plane.keys, job, names, stored, rate, count]
        command = [sys.executable, "-m", "benchmarks.dashboard_rank", *map(str, words)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                telling = Telling(process)
                telling.hears("stored")
                yield telling
            finally:
                process.kill()

    def traced(self, page: "Page", act: Callable[[], object]) -> bytes:
        """Return Chromium's trace of what a page does meanwhile."""
        self.browser.start_tracing(page=page, categories=[*CATEGORIES, MARKS])
        try:
            act()
        finally:
            trace = self.browser.stop_tracing()
        return trace


class Telling:
    """A rank in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self) -> None:
        """Have it tell its next updates."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hears(self, word: str) -> None:
        """Come back when it says a word."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != f"{word}\n":
            raise CannotMeasure(f"a rank ended before it had {word} all")


@contextlib.contextmanager
def chromium() -> Iterator["Browser"]:
    """Run a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise CannotMeasure(f"no browser: {error}; `make venv` installs playwright") from error
    program = shutil.which("chromium")
    if program is None:
        raise CannotMeasure("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield browser
        browser.close()


def waits(page: "Page", is_so: Callable[[], object], what: str) -> None:
    """Come back when something holds; the browser goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"it did not come so far: {what}")
        page.wait_for_timeout(50)
