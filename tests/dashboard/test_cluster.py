"""The cluster and the settings in a real browser: what is done there is so at the plane."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ..harness.http_door import Door
from ..harness.plane_jobs import loom
from .conftest import WORLD
from .showing import PATIENCE, Shown, pid, written
from .test_page import enter

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("torch", "browser", "dashboard")),
]


def device_of(door: Door, job: str, rank: int) -> str:
    """Return the device that a rank uses, by the API."""
    ranks = door.ask(f"/api/jobs/{job}/ranks")["items"]
    return str(next(one for one in ranks if one["rank"] == rank)["device_uuids"][0])


def devices(door: Door) -> dict[str, dict[str, Any]]:
    return {one["uuid"]: one for one in door.ask("/api/devices")["items"]}


def held(shown: Shown) -> dict[str, dict[str, Any]]:
    """Return the devices that the page holds, without the ids that only a page needs."""
    found = shown.held("cluster")
    items = found["value"]["devices"] if found else []
    return {one["uuid"]: {key: one[key] for key in one if key != "id"} for one in items}


def trains(shown: Shown, out: Path, more: int = 3) -> None:
    """Come back when every rank has done further steps, by its own file."""
    files = [out / f"rank-{rank}" for rank in range(WORLD)]
    shown.waits(lambda: all(file.exists() and file.read_bytes().count(b"\n") > 1 for file in files))
    goals = [max(written(out, rank)) + more for rank in range(WORLD)]
    shown.waits(lambda: all(max(written(out, rank)) >= goals[rank] for rank in range(WORLD)))


def mark(shown: Shown, uuid: str, state: str, reason: str) -> None:
    """Say of a device on the page how it is."""
    shown.part("device", f'[data-uuid="{uuid}"]').click()
    shown.page.get_by_label("New state").select_option(state)
    shown.part("reason").fill(reason)
    shown.part("confirm", ":enabled").click()
    shown.part("outcome").wait_for()
    shown.page.get_by_role("button", name="Done", exact=True).click()
    shown.part("device", f'[data-uuid="{uuid}"][data-state="{state}"]').wait_for()


def test_a_device_that_fails_on_the_page_loses_its_rank_and_may_be_used_again(
    visitor: "BrowserContext", door: Door, job: str, out: Path
) -> None:
    shown = enter(visitor, door, "olga", "operator")
    trains(shown, out)
    uuid, before = device_of(door, job, 1), pid(out, 1)
    shown.page.get_by_role("link", name="Cluster").click()
    shown.waits(lambda: held(shown) == devices(door))

    mark(shown, uuid, "failed", "xid 79")
    shown.waits(lambda: pid(out, 1) != before)
    said = devices(door)[uuid]
    events = door.ask(f"/api/jobs/{job}/events", limit=500)["items"]

    assert (said["state"], said["source"], said["reason"]) == ("failed", "olga", "xid 79")
    kills = [(one["rank"], one["reason"]) for one in events if one["kind"] == "kill"]
    assert kills == [(1, f"device_failed_{uuid}")]
    trains(shown, out)  # the others waited for a new process of that rank

    mark(shown, uuid, "healthy", "reset")
    shown.page.evaluate("window.__loom.cut()")
    loom("devices", "drain", device_of(door, job, 0))
    shown.part("device", '[data-state="draining"]').wait_for()
    loom("devices", "recover", device_of(door, job, 0))
    shown.waits(lambda: held(shown) == devices(door))
    assert {one["state"] for one in devices(door).values()} == {"healthy"}
    assert (shown.strangers(), shown.wrong) == ([], [])


def test_what_would_happen_is_said_before_it_does(
    visitor: "BrowserContext", door: Door, job: str, out: Path
) -> None:
    shown = enter(visitor, door, "olga", "operator")
    trains(shown, out)
    uuid, before = device_of(door, job, 0), pid(out, 0)

    shown.page.goto(f"{door.url}/cluster?device={uuid}")
    shown.page.get_by_label("New state").select_option("failed")
    shown.part("preview").get_by_text(f"Rank 0 of {job} is ended at once").wait_for()
    command = shown.part("preview").locator('[data-testid="copy-text"]')
    shown.waits(lambda: command.text_content() == f"loom devices fail {uuid}")
    shown.page.get_by_role("button", name="Cancel").click()

    assert (devices(door)[uuid]["state"], pid(out, 0)) == ("healthy", before)


def as_whom(door: Door, token: str) -> tuple[int, str]:
    """Return whom the API takes the bearer of a token for."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{door.url}/api/me", headers=headers, timeout=PATIENCE, trust_env=False)
    return answer.status_code, str(answer.json().get("user", ""))


def test_a_token_made_on_the_page_lets_in_until_it_is_revoked_there(
    visitor: "BrowserContext", door: Door
) -> None:
    shown = enter(visitor, door, "ada", "admin")
    shown.page.get_by_role("link", name="Settings").click()

    shown.part("token-add").click()
    shown.part("token-label").fill("nightly")
    shown.part("confirm", ":enabled").click()
    secret = shown.part("secret").locator('[data-testid="copy-text"]').text_content() or ""
    shown.page.get_by_role("button", name="Done", exact=True).click()
    known = door.ask("/api/tokens", user="ada")["items"]
    [name] = [one["id"] for one in known if one["label"] == "nightly"]
    row = shown.part("token", f'[data-token="{name}"]')
    row.wait_for()
    good = as_whom(door, secret)
    row.locator('[data-testid="token-revoke"]').click()
    shown.part("confirm", ":enabled").click()
    row.wait_for(state="detached")

    assert good == (200, "ada")
    assert as_whom(door, secret) == (401, "")
    assert secret not in shown.page.content()
    assert (shown.strangers(), shown.wrong) == ([], [])


def test_a_viewer_sees_the_cluster_and_tokens_of_their_own_and_is_refused_nothing(
    visitor: "BrowserContext", door: Door, job: str
) -> None:
    shown = enter(visitor, door, "vera", "viewer")

    shown.page.get_by_role("link", name="Cluster").click()
    shown.part("device").first.click()
    shown.page.get_by_role("dialog").get_by_text("Used by").wait_for()
    assert (shown.part("confirm").count(), shown.part("node-mark").count()) == (0, 0)
    shown.page.keyboard.press("Escape")
    shown.page.get_by_role("link", name="Settings").click()
    shown.part("token").first.wait_for()
    shown.part("retention").wait_for()

    own = {one["id"] for one in door.ask("/api/tokens", user="vera")["items"]}
    rows = {one.get_attribute("data-token") for one in shown.part("token").all()}
    assert rows == own
    assert (shown.part("user").count(), shown.part("token-add").count()) == (0, 0)
    assert (shown.strangers(), shown.wrong) == ([], [])
