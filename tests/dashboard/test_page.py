"""The dashboard in a real browser over a real plane: what it shows is so, whatever happens."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..harness import evidence
from ..harness.home import until
from ..harness.http_door import Door
from ..harness.metric_rows import Shown as StoredPoint
from ..harness.metric_rows import replaced_in_file
from ..harness.plane_jobs import SCRIPTS, Plane, loom
from .conftest import WORLD
from .showing import PATIENCE, Shown, agrees, pid, points, steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("torch", "browser", "dashboard")),
]

PHONE = 390  # pixels
EPOCHS, SAMPLES, BATCH = 1000, 4096, 4  # of scripts/learn.py


def link(user: str, role: str) -> str:
    """Return a way in for somebody, as an admin makes it on a terminal."""
    return loom("tokens", "link", user, "--role", role).split()[-1]


def enter(visitor: "BrowserContext", door: Door, user: str, role: str) -> Shown:
    """Come in by a link; return the page that it leads to."""
    shown = Shown(visitor, door)
    shown.page.goto(link(user, role))
    shown.page.wait_for_url(f"{door.url}/")
    shown.part("live-dot", '[data-state="live"]').wait_for()
    return shown


def open_job(shown: Shown, job: str) -> None:
    """Click on a job of the list, and wait for its curve."""
    shown.part("job-row", f'[data-job="{job}"]').get_by_role("link").click()
    shown.page.wait_for_url(f"{shown.door.url}/jobs/{job}*")
    shown.part("loss-chart").wait_for()
    shown.waits(lambda: steps(shown))


def moves(shown: Shown, more: int = 5) -> None:
    """Come back when the page's curve has got so many further steps."""
    before = steps(shown)[-1]
    shown.waits(lambda: steps(shown)[-1] >= before + more)


def test_a_page_follows_a_job_through_a_change_a_death_and_a_restart_of_its_server(
    visitor: "BrowserContext", plane: Plane, door: Door, job: str, out: Path
) -> None:
    shown = enter(visitor, door, "olga", "operator")
    open_job(shown, job)
    moves(shown)
    agrees(shown, job, out)

    change_lr(shown)
    lose_a_rank(shown, out)
    moves(shown)
    agrees(shown, job, out)

    cut(shown, plane)
    moves(shown)
    agrees(shown, job, out)

    shown.page.reload()
    shown.part("loss-chart").wait_for()
    shown.waits(lambda: steps(shown))
    moves(shown)
    agrees(shown, job, out)
    shown.waits(lambda: "lr 0.05 -> 0.02" in happened(shown))
    assert "recovered" in happened(shown)

    assert shown.strangers() == []
    assert shown.wrong == []


def happened(shown: Shown) -> dict[str, str]:
    """Return what the page's timeline has, and who did it."""
    found = shown.held("timeline")
    items = found["value"]["items"] if found else []
    return {one["title"]: one["author"] for one in items}


def change_lr(shown: Shown) -> None:
    """Change the learning rate; the page shows each rank's word and the change at its step."""
    shown.part("knob-edit").click()
    shown.part("knob-value").fill("0.02")
    shown.part("preview").get_by_text("0.02").first.wait_for()
    shown.part("confirm").click()
    for rank in range(WORLD):
        shown.part("ack", f'[data-rank="{rank}"][data-state="applied"]').first.wait_for()
    shown.page.keyboard.press("Escape")
    shown.part("timeline-entry", '[data-kind="knob"]').first.wait_for()
    assert happened(shown)["lr 0.05 -> 0.02"] == "olga"


def lose_a_rank(shown: Shown, out: Path) -> None:
    """Kill a rank; the page shows that it was recovered, and by another process."""
    before = pid(out, 1)
    os.kill(before, signal.SIGKILL)
    shown.part("timeline-entry", '[data-what="recovered"]').first.wait_for()
    shown.part("job-state", '[data-state="RUNNING"]').first.wait_for()
    shown.waits(lambda: pid(out, 1) != before)


def cut(shown: Shown, plane: Plane) -> None:
    """Cut the socket, then kill the server; the page finds its way back both times."""
    for break_off in (lambda: shown.page.evaluate("window.__loom.cut()"), lambda: restart(plane)):
        count = len(shown.sockets)
        break_off()
        shown.waits(lambda count=count: len(shown.sockets) > count)
        shown.part("live-dot", '[data-state="live"]').wait_for()


def restart(plane: Plane) -> None:
    plane.back("server", plane.kill("server"))


def test_a_page_asks_for_nothing_while_nobody_touches_it(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = settled(visitor, door, job)

    first = steps(shown)[-1]
    spans = (list(idle(shown, seconds=8)) for _ in range(6))  # a crowded machine may cost a socket
    samples = next((one for one in spans if all_asked(one) == NOTHING), [])

    assert samples
    assert samples[-1]["step"] > first  # it has gone on all the while


@pytest.mark.soak
def test_a_page_asks_for_nothing_in_a_minute(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = settled(visitor, door, job)

    first = steps(shown)[-1]
    samples = list(idle(shown, seconds=60))

    evidence.write("dashboard-idle", samples, seconds=60, first_step=first, **all_asked(samples))
    assert all_asked(samples) == NOTHING
    assert samples[-1]["step"] > first


NOTHING = {"requests": 0, "sockets": 0, "messages": 0}


def settled(visitor: "BrowserContext", door: Door, job: str) -> Shown:
    """Open a job; come back when its page has left behind what it wanted of the list."""
    shown = enter(visitor, door, "olga", "operator")
    open_job(shown, job)
    moves(shown)
    shown.waits(lambda: shown.held("jobs") is None)
    return shown


def idle(shown: Shown, seconds: int, each: int = 4) -> Iterator[dict[str, int]]:
    """Touch nothing; yield what the page has asked for in each few seconds, and how far it is."""
    for _ in range(seconds // each):
        before = asked(shown)
        shown.page.wait_for_timeout(each * 1000)
        now = asked(shown)
        yield {name: now[name] - before[name] for name in NOTHING} | {"step": steps(shown)[-1]}


def asked(shown: Shown) -> dict[str, int]:
    """Return how much the page has asked for so far: by HTTP, in sockets, and over them."""
    asked = (shown.requests, shown.sockets, shown.messages)
    return {name: len(each) for name, each in zip(NOTHING, asked, strict=True)}


def all_asked(samples: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(sample[name] for sample in samples) for name in NOTHING}


def test_a_viewer_sees_all_and_no_control(visitor: "BrowserContext", door: Door, job: str) -> None:
    shown = enter(visitor, door, "vera", "viewer")
    open_job(shown, job)
    moves(shown)

    assert shown.part("role").text_content() == "viewer"
    assert shown.part("knob-edit").count() == 0
    assert shown.page.locator('[data-testid^="control-"]').count() == 0
    assert shown.held("job")["value"]["verbs"] == []


def names(shown: Shown, part: str) -> set[str | None]:
    """Return what the parts of the page with this name are about."""
    return {one.get_attribute("data-name") for one in shown.part(part).all()}


def test_the_tab_of_charts_has_every_metric_of_the_job(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = enter(visitor, door, "vera", "viewer")
    shown.page.set_viewport_size({"width": 1280, "height": 4000})  # all are in view

    shown.page.goto(f"{door.url}/jobs/{job}/charts?pin=loss")
    shown.part("chart", '[data-name="loss"]').first.wait_for()

    shown.waits(
        lambda: (
            names(shown, "chart") == set(door.ask(f"/api/jobs/{job}/metrics", buckets=1)["names"])
        )
    )
    assert "pinned" in names(shown, "chart-group")
    shown.waits(lambda: steps(shown))
    assert shown.wrong == []


def test_on_a_phone_all_pages_are_in_reach_rows_have_names_and_the_steps_are_counted(
    browser: "Browser", door: Door, job: str
) -> None:
    phone = browser.new_context(viewport={"width": PHONE, "height": 844}, is_mobile=True)
    shown = enter(phone, door, "olga", "operator")
    open_job(shown, job)

    pages = shown.page.get_by_role("navigation", name="Pages").get_by_role("link").all()
    boxes = {str(link.text_content()).strip(): link.bounding_box() for link in pages}
    shown.waits(lambda: "of" in str(shown.part("job-step").first.text_content()))
    steps_of = str(shown.part("job-step").first.text_content()).replace("\u202f", "")
    rows = shown.part("timeline").inner_text().split("\n")
    phone.close()

    names = ["Jobs", "Experiments", "Submit", "Cluster", "Settings", "Docs", "API"]
    assert list(boxes) == names
    assert all(box and 0 <= box["x"] <= box["x"] + box["width"] <= PHONE for box in boxes.values())
    assert {"Knobs", "Checkpoints", "Recoveries", "Ranks", "Other"} <= set(rows)
    assert steps_of.endswith(f" of {EPOCHS * SAMPLES // (WORLD * BATCH)}")
    assert shown.wrong == []


def test_the_tab_of_knobs_has_every_knob_of_the_job_and_for_a_viewer_no_editor(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = enter(visitor, door, "vera", "viewer")

    shown.page.goto(f"{door.url}/jobs/{job}/knobs")
    shown.part("knob").first.wait_for()

    known = {one["name"] for one in door.ask(f"/api/jobs/{job}/knobs")["items"]}
    shown.waits(lambda: names(shown, "knob") == known)
    assert shown.part("knob-now").count() == len(known)
    assert shown.part("knob-input").count() == 0
    assert shown.wrong == []


def test_a_job_shows_what_its_ranks_print_what_happened_and_what_it_was_made_of(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = enter(visitor, door, "olga", "operator")
    open_job(shown, job)

    view(shown, "Logs")
    shown.part("log-line", '[data-rank="0"]').first.wait_for()
    shown.waits(lambda: printed(shown) == stored(door, job))
    view(shown, "Checkpoints")
    shown.page.get_by_text("No checkpoints yet").wait_for()
    save_and_damage(shown, door, job)
    view(shown, "Events")
    shown.part("event", '[data-kind="state"]').first.wait_for()
    view(shown, "Spec")
    shown.part("spec").filter(has_text="learn.py").wait_for()

    assert shown.strangers() == []
    assert shown.wrong == []


def save_and_damage(shown: Shown, door: Door, job: str) -> None:
    """Have all ranks save; the page says that it is whole, or which shard was changed."""
    loom("checkpoint", job)
    (saved,) = door.ask(f"/api/jobs/{job}/checkpoints")["items"]
    shown.part("verify").click()
    shown.part("check", '[data-state="whole"]').wait_for()
    file = Path(saved["place"], "worker_1.pt")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    shown.part("verify").click()
    line = shown.part("checkpoint", f'[data-step="{saved["step"]}"][data-state="damaged"]')
    line.filter(has_text="worker_1.pt").wait_for()
    assert shown.part("verify").count() == 0


def view(shown: Shown, name: str) -> None:
    shown.page.get_by_role("link", name=name, exact=True).click()


def printed(shown: Shown) -> list[tuple[int, str]]:
    """Return the lines that the page holds."""
    found = shown.held("logs")
    items = found["value"]["items"] if found else []
    return sorted((one["rank"], one["message"]) for one in items)


def stored(door: Door, job: str) -> list[tuple[int, str]]:
    """Return the lines that the API has."""
    items = door.ask(f"/api/jobs/{job}/logs")["items"]
    return sorted((one["rank"], one["message"]) for one in items)


def test_ranks_over_time_are_what_the_ranks_have_told(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = enter(visitor, door, "vera", "viewer")

    shown.page.goto(f"{door.url}/jobs/{job}/ranks")
    shown.part("heat").wait_for()
    shown.waits(lambda: all(len(cells(shown, rank)) > 2 for rank in range(WORLD)))
    shown.part("heat-rank").focus()
    shown.page.keyboard.press("ArrowRight")  # to the next rank

    shown.part("heat-value").filter(has_text="rank 1, ").wait_for()
    for rank in range(WORLD):
        held = cells(shown, rank)
        found = door.ask(f"/api/jobs/{job}/metrics", name=STEP_SECONDS, rank=rank, raw=True)
        told = greatest(found["series"][0], shown.held("heat")["value"]["width"])
        ended = [at for at in told if min(held) <= at < max(held)]  # the newest stretch may grow
        assert ended
        assert {at: held.get(at) for at in ended} == {at: float(f"{told[at]:.3g}") for at in ended}
    assert shown.wrong == []


STEP_SECONDS = "loom/step_seconds"


def cells(shown: Shown, rank: int) -> dict[int, float]:
    """Return the stretches of time that the page has a value of."""
    found = shown.held("heat")
    lines = found["value"]["lines"] if found else []
    its = next((line["values"] for line in lines if line["rank"] == rank), [])
    start = found["value"]["start"] if found else 0
    return {start + at: value for at, value in enumerate(its) if value is not None}


def greatest(series: dict[str, list[float]], width: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for time, value in zip(series["times"], series["values"], strict=True):
        found[int(time // width)] = max(value, found.get(int(time // width), value))
    return found


def test_a_zoomed_chart_shows_the_points_that_a_whole_one_cannot(
    visitor: "BrowserContext", door: Door, many: str
) -> None:
    shown = enter(visitor, door, "vera", "viewer")
    shown.page.goto(f"{door.url}/jobs/{many}")
    shown.waits(lambda: len(under(shown, 0.5)) == 2)  # a bucket, from one step to another

    drag(shown, 0.5, 0.52)
    shown.page.wait_for_url("**zoom=*")
    shown.waits(lambda: len(under(shown, 0.5)) == 1)
    (step,) = under(shown, 0.5)
    shown.page.reload()
    shown.waits(lambda: under(shown, 0.5) == [step])
    value = shown.part("curve-values").locator("b").text_content()

    assert float(value or "nan") == float(f"{points(door, many, 'loss', 0)[step]:.4g}")
    over(shown).dblclick()
    shown.waits(lambda: "zoom" not in shown.page.url and len(under(shown, 0.5)) == 2)
    assert shown.wrong == []


def over(shown: Shown) -> "Locator":
    return shown.part("loss-chart").locator(".u-over")


def under(shown: Shown, part: float) -> list[int]:
    """Return the steps of what is under the pointer at a place of the chart, one or the ends."""
    box = over(shown).bounding_box()
    if box is None:
        return []
    shown.page.mouse.move(box["x"] + box["width"] * part, box["y"] + 40)
    words = shown.part("curve-values").locator("span").first.text_content() or ""
    return [int("".join(filter(str.isdigit, word))) for word in words.split(" to ") if word]


def drag(shown: Shown, start: float, end: float) -> None:
    box = over(shown).bounding_box()
    assert box is not None
    y = box["y"] + 40
    shown.page.mouse.move(box["x"] + box["width"] * start, y)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + box["width"] * end, y, steps=4)
    shown.page.mouse.up()


def test_a_chart_shows_what_a_restart_replaced_where_that_is_asked_for(
    visitor: "BrowserContext", door: Door, folder: Path, out: Path
) -> None:
    shutil.copy(SCRIPTS / "repeated.py", out)
    spec = {"name": "repeated", "script": "repeated.py", "resources": {"workers": 1}}
    spec |= {"env": {"OUT": str(out)}, "recovery": {"policy": "restart", "attempts": 1}}
    job = door.submit(spec, out)
    door.ends(job)
    stored = folder / "loom" / "plane" / "records.db"
    until(lambda: replaced_of(stored, job), PATIENCE)
    shown = enter(visitor, door, "ghita", "viewer")
    shown.page.goto(f"{door.url}/jobs/{job}?metric=loss")
    switch = shown.part("replaced")

    switch.press("Enter")
    shown.part("loss-chart").locator("canvas").wait_for()
    shown.part("replaced-value").wait_for()
    value = shown.part("replaced-value").inner_text()
    shown.page.locator('[data-view="table"]').click()
    rows = shown.part("curve-row", "[data-replaced]")
    rows.nth(4).wait_for()
    tabled = {int(row.get_attribute("data-step") or -1) for row in rows.all()}
    shown.page.goto(f"{door.url}/jobs/{job}/charts")
    switch.wait_for()
    is_pressed = switch.get_attribute("aria-pressed")

    kept = replaced_of(stored, job)
    ((generation, last),) = kept[9].items()
    assert tabled == set(kept) == {5, 6, 7, 8, 9}
    assert value == f"before {last.value:.1f} (generation {generation})"
    assert is_pressed == "false"  # the address of another view does not have it
    assert (switch.count(), shown.wrong) == (1, [])


def replaced_of(stored: Path, job: str) -> dict[int, dict[int, StoredPoint]]:
    """Return what a database keeps of a job's loss without showing it, by step and generation."""
    found = replaced_in_file(stored)
    return {place[4]: its for place, its in found.items() if place[:2] == (job, "loss")}


def test_an_address_that_means_nothing_is_shown_by_the_page(
    visitor: "BrowserContext", door: Door, plane: Plane
) -> None:
    shown = enter(visitor, door, "olga", "operator")

    for path in ("/foo", "/jobs/nope/xyz"):
        shown.page.goto(f"{door.url}{path}")
        shown.page.get_by_text("Page not found").wait_for()
        assert shown.page.get_by_role("navigation", name="Pages").is_visible()


def test_who_is_not_in_is_told_how_to_get_in(visitor: "BrowserContext", door: Door) -> None:
    shown = Shown(visitor, door)

    shown.page.goto(f"{door.url}/jobs/anything")
    shown.part("login-help").wait_for(timeout=PATIENCE * 1000)

    assert shown.strangers() == []
    assert [url for url in shown.sockets if "after" in url] == []
