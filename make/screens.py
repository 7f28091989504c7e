"""Take the pictures in docs/screens: every view, light and dark, wide and on a phone.

A machine looks at each: text that is cut, overlaps, or is too faint, and whatever scrolls sideways,
is said and fails it. `make screens T=overview` takes one view alone.
"""

import io
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from scene import DEVICES, Scene
from stage import ROOT, NotShown, Stage

sys.path.insert(0, str(ROOT))
from tests.dashboard.looks import problems

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = ROOT / "docs" / "screens"
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
PATIENCE = 60_000  # milliseconds
LIMIT = 900  # seconds; on a quiet machine it takes a quarter of that
COLOURS, EXACT = 256, 128  # of a picture; those that are most of it stay as they are
FAINT = (Path(__file__).with_name("faint.js")).read_text()
NO_PAGE = "Page not found"
STILL = """() => document.querySelectorAll('[class*="skeleton"]').length === 0
  && document.querySelector('[data-testid="live-dot"]')?.dataset.state === "live" """
SPIKE = """() => {
  const sub = window.__loom.subs().find(({ topic }) => topic === "series");
  const [{ steps, max }] = window.__loom.state(sub.id).series;
  const found = window.__loom.subs().find(({ topic }) => topic === "timeline");
  const { items } = window.__loom.state(found.id);
  const [changed, undone] = items.filter(({ kind }) => kind === "knob").map(({ step }) => step);
  const between = max.map((value, at) => (steps[at] > changed && steps[at] < undone ? value : 0));
  const at = between.indexOf(Math.max(...between));
  const { left, top, width, height } = document.querySelector(".u-over").getBoundingClientRect();
  return [left + ((steps[at] - steps[0]) / (steps.at(-1) - steps[0])) * width, top + height / 2];
}"""

TO_TABS = """() => {
  document.querySelector('nav[aria-label="Views of the job"]')?.scrollIntoView();
  scrollBy(0, -8);
}"""


def causes(page: "Page") -> None:
    """Click on the spike, and have a look at what is said of it."""
    page.locator('[data-testid="loss-chart"]').scroll_into_view_if_needed()
    page.mouse.click(*page.evaluate(SPIKE))
    page.mouse.move(0, 0)
    page.locator('[data-testid="cause"]').first.wait_for(timeout=PATIENCE)
    show(page, "causes", "end")


def show(page: "Page", part: str, side: str = "center") -> None:
    """Scroll to a part of the page."""
    page.locator(f'[data-testid="{part}"]').first.evaluate(
        "(part, block) => part.scrollIntoView({ block })", side
    )


@dataclass(frozen=True, slots=True)
class View:
    """Something to see: where it is, what is there when it is to be seen, what is done first."""

    name: str
    path: str
    part: str = ""
    act: Callable[["Page"], None] | None = None


VIEWS = (
    View("jobs", "/jobs", "job-row"),
    View("overview", "/jobs/{job}", "loss-chart"),
    View("causes", "/jobs/{job}", "loss-chart", causes),
    View("charts", "/jobs/{job}/charts", "curve-values"),
    View("knobs", "/jobs/{job}/knobs", "knob"),
    View("ranks", "/jobs/{job}/ranks"),
    View("logs", "/jobs/{job}/logs", "log-line"),
    View("checkpoints", "/jobs/{job}/checkpoints"),
    View("events", "/jobs/{job}/events", "event"),
    View("cluster", "/cluster"),
    View("compare", "/experiments/compare?run={job}&run={other}"),
    View("submit", "/submit"),
)


def main(names: Sequence[str]) -> int:
    """Play the scene and take pictures of it; return 0 when nothing is wrong with any of them."""
    build = ROOT / ".build"
    build.mkdir(exist_ok=True)
    stage = Stage(Path(tempfile.mkdtemp(prefix="screens-", dir=build)), LOOM_DEVICES=DEVICES)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    try:
        scene = Scene(stage)
        scene.play()
        wrong = list(taken(scene, [view for view in VIEWS if not names or view.name in names]))
    except NotShown as error:
        wrong = [str(error)]
    finally:
        signal.alarm(0)
        stage.clear()
        shutil.rmtree(stage.home, ignore_errors=True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def too_long(signum: int, frame: FrameType | None) -> None:
    """Stop waiting for something that does not happen."""
    raise NotShown(f"it took longer than {LIMIT} s")


def taken(scene: Scene, views: Sequence[View]) -> Iterator[str]:
    """Take all pictures; yield what is wrong with them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        state = entered(browser, scene)
        for view in views:
            for size, (width, height) in SIZES.items():
                for theme in THEMES:
                    more: Any = {"color_scheme": theme, "storage_state": state}
                    more |= {"is_mobile": size == "phone", "has_touch": size == "phone"}
                    page = browser.new_page(viewport={"width": width, "height": height}, **more)
                    yield from look(page, scene, view, f"{view.name}-{size}-{theme}")
                    page.close()


def look(page: "Page", scene: Scene, view: View, name: str) -> Iterator[str]:
    """Take one picture; yield what is wrong with it."""
    path = view.path.format(job=scene.job, other=scene.other)
    answer = page.goto(scene.url + path)
    if answer is None or answer.status == 404 or is_none(page):
        yield f"{name}: this dashboard has no {path.partition('?')[0]}"
        return
    if view.part:
        page.locator(f'[data-testid="{view.part}"]').first.wait_for(timeout=PATIENCE)
    page.wait_for_function(STILL, timeout=PATIENCE)
    if view.act:
        view.act(page)
    elif "-phone-" in name and view.path.startswith("/jobs/{job}/"):
        page.evaluate(TO_TABS)  # what is above them is on the overview
    page.wait_for_timeout(600)  # what moves has moved
    found = [*problems(page), *page.evaluate(FAINT)]
    size = keep(page.screenshot(), FOLDER / f"{name}.png")
    print(f"{name}: {size / 1000:.0f} kB, {len(found)} problems", flush=True)
    yield from (f"{name}: {line}" for line in found)


def is_none(page: "Page") -> bool:
    """Tell whether the dashboard itself knows of no such page."""
    page.locator("#main > *").first.wait_for(timeout=PATIENCE)
    return page.get_by_text(NO_PAGE).count() > 0


def keep(picture: bytes, path: Path) -> int:
    """Write a picture with few colours, those of its grounds and lines exactly; return its size."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as found:
        whole = found.convert("RGB")
    often = sorted(whole.getcolors(whole.width * whole.height) or [], reverse=True)[:EXACT]
    rest = whole.quantize(COLOURS - EXACT, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in often for part in colour] + rest)
    few = whole.quantize(palette=palette, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path.stat().st_size


def entered(browser: "Browser", scene: Scene) -> Any:
    """Come in by a link; return what a browser remembers of it."""
    page = browser.new_page()
    page.goto(scene.link())
    page.wait_for_url(f"{scene.url}/", timeout=PATIENCE)
    state = page.context.storage_state()
    page.close()
    return state


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Run a browser."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise NotShown("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--enable-features=OverlayScrollbar"]
        )
        yield browser
        browser.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
