"""A page of the dashboard in a browser: what it holds, what it asks for, and whether that is so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..harness.home import until
from ..harness.http_door import Door

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page, Request, WebSocket

PATIENCE = 120.0  # seconds; generous, for loaded machines
HELD = """(topic) => {
  const sub = window.__loom?.subs().find((one) => one.topic === topic);
  const value = sub && window.__loom.state(sub.id);
  return value ? {cursor: window.__loom.cursor(sub.id), value} : null;
}"""
BUCKET = ("first_steps", "steps", "min", "max", "last", "counts")


class Shown:
    """One page, and everything that it has asked for."""

    def __init__(self, context: "BrowserContext", door: Door) -> None:
        self.door = door
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.requests: list[str] = []
        self.sockets: list[str] = []
        self.messages: list[str | bytes] = []  # that it sent over them
        self.wrong: list[str] = []
        self.page.on("request", self._asks)
        self.page.on("websocket", self._connects)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self._complains(said.type, said.text))

    def _asks(self, request: "Request") -> None:
        self.requests.append(request.url)

    def _connects(self, socket: "WebSocket") -> None:
        self.sockets.append(socket.url)
        socket.on("framesent", lambda message: self.messages.append(message))

    def _complains(self, kind: str, text: str) -> None:
        is_away = "WebSocket" in text or "net::ERR_" in text  # while the server is
        if kind == "error" and not is_away:
            self.wrong.append(text)

    def part(self, name: str, more: str = "") -> "Locator":
        """Return the parts of the page with this name."""
        return self.page.locator(f'[data-testid="{name}"]{more}')

    def held(self, topic: str) -> Any:
        """Return what the page holds of a topic, and up to which cursor."""
        return self.page.evaluate(HELD, topic)

    def waits(self, is_so: Callable[[], object]) -> None:
        """Come back when something holds; the browser goes on meanwhile."""

        def holds() -> bool:
            self.page.wait_for_timeout(20)
            return bool(is_so())

        until(holds, PATIENCE)

    def strangers(self) -> list[str]:
        """Return what was asked of somebody other than the plane."""
        ours = (f"{self.door.url}/", f"{self.door.url.replace('http', 'ws', 1)}/", "data:")
        return [url for url in (*self.requests, *self.sockets) if not url.startswith(ours)]


def steps(shown: Shown) -> list[int]:
    """Return the steps that the page's curve has."""
    found = shown.held("series")
    curves = found["value"]["series"] if found else []
    return list(curves[0]["steps"]) if curves else []


def agrees(shown: Shown, job: str, out: Path) -> None:
    """Check what the page's curves are against the API and the ranks' own files, up to where
    the page stands: every point is in the bucket that spans its step, and nothing else is."""
    held = shown.held("series")["value"]["series"]
    assert held
    for curve in held:
        raw = points(shown.door, job, curve["name"], curve["rank"])
        own = written(out, curve["rank"])  # read last, so it has whatever was told
        both = raw.keys() & own.keys()
        assert {step: raw[step] for step in both} == {step: own[step] for step in both}
        assert len(raw.keys() - own.keys()) <= 1  # one that died between telling and writing
        known = {step: value for step, value in raw.items() if step <= curve["steps"][-1]}
        spans = list(zip(curve["first_steps"], curve["steps"], strict=True))
        expected = [bucket(known, first, last) for first, last in spans]
        assert list(zip(*(curve[name] for name in BUCKET), strict=True)) == expected
        assert sum(curve["counts"]) == len(known)


def bucket(known: dict[int, float], first: int, last: int) -> tuple[Any, ...]:
    values = [value for step, value in sorted(known.items()) if first <= step <= last]
    return first, last, min(values), max(values), values[-1], len(values)


def points(door: Door, job: str, name: str, rank: int) -> dict[int, float]:
    """Return every point of a series by the API."""
    query = {"name": name, "rank": rank, "raw": True, "limit": 100_000}
    series = door.ask(f"/api/jobs/{job}/metrics", **query)["series"]
    return dict(zip(series[0]["steps"], series[0]["values"], strict=True)) if series else {}


def written(out: Path, rank: int) -> dict[int, float]:
    """Return what a rank itself wrote of its losses; a line that is being written is left out."""
    lines = (out / f"rank-{rank}").read_bytes().split(b"\n")[:-1]
    rows = [json.loads(line) for line in lines]
    return {row[0]: row[1] for row in rows if isinstance(row, list)}


def pid(out: Path, rank: int) -> int:
    """Return the process that a rank is now, by its own word."""
    lines = (out / f"rank-{rank}").read_bytes().split(b"\n")[:-1]
    lives = [row for row in map(json.loads, lines) if isinstance(row, dict)]
    return int(lives[-1]["pid"])
