"""A page without a browser: one socket, its topics, and what it makes of what it is told."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import TypeAdapter
from websockets.sync.client import ClientConnection

from torchloom.server.models.stream import ServerMessage, StreamDeltas, StreamValues

from ..harness.server_plane import PATIENCE, Server
from .listening import listening

_MESSAGE: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)
_DATA = {
    (kind, topic): TypeAdapter(field.annotation)
    for kind, model in (("snapshot", StreamValues), ("delta", StreamDeltas))
    for topic, field in model.model_fields.items()
}
POINT = ("steps", "first_steps", "times", "min", "max", "last", "counts", "nans")


class Page:
    """Merges as any page is to: whole values replace, points and entries are added behind."""

    def __init__(self) -> None:
        self.socket: ClientConnection
        self.subs: dict[str, dict[str, Any]] = {}
        self.state: dict[str, Any] = {}
        self.cursor: dict[str, str] = {}
        self.heard: list[dict[str, Any]] = []

    def sub(self, name: str, topic: str, job: str = "", **words: Any) -> None:
        """Follow a topic."""
        self.subs[name] = {"op": "sub", "id": name, "topic": topic, "job": job, **words}
        self._send(name)

    def unsub(self, name: str) -> None:
        del self.subs[name]
        self.socket.send(json.dumps({"op": "unsub", "id": name}))

    def hear(self) -> dict[str, Any]:
        """Take in one message."""
        said: dict[str, Any] = json.loads(self.socket.recv(PATIENCE))
        self.heard.append(said)
        name = said.get("id", "")
        self._check(said)
        if said["kind"] == "snapshot":
            self.state[name] = said["data"]
        elif said["kind"] == "delta":
            self._merge(name, said["data"])
        if name and "cursor" in said:
            self.cursor[name] = said["cursor"]
        return said

    def until(self, is_so: Callable[["Page"], object]) -> None:
        """Hear until something holds; a page hears beats for ever, so this ends by the clock."""
        deadline = time.monotonic() + PATIENCE
        while not _holds(is_so, self):
            assert time.monotonic() < deadline, f"it did not come true: {self.state}"
            self.hear()

    def said(self, name: str) -> list[str]:
        """Return what sort of messages came under a name."""
        return [each["kind"] for each in self.heard if each.get("id") == name]

    def curve(self, name: str, metric: str = "loss", rank: int = 0) -> dict[str, Any]:
        """Return one series of a subscription."""
        curves = self.state[name]["series"]
        return next(one for one in curves if (one["name"], one["rank"]) == (metric, rank))

    @contextlib.contextmanager
    def open(self, server: Server, token: str | None = None) -> Iterator["Page"]:
        """Be connected: at first, or again with the cursors that it has."""
        with listening(server, "/api/stream", token) as client:
            self.socket = client.socket
            for name in self.subs:
                self._send(name)
            yield self

    def _send(self, name: str) -> None:
        after = {"after": self.cursor[name]} if self.cursor.get(name) else {}
        self.socket.send(json.dumps({**self.subs[name], **after}))

    def _check(self, message: dict[str, Any]) -> None:
        """Check a message against the models of which the dashboard's types are generated."""
        _MESSAGE.validate_python(message, strict=True)
        if message["kind"] in ("snapshot", "delta") and message["id"] in self.subs:
            topic = self.subs[message["id"]]["topic"]
            _DATA[message["kind"], topic].validate_json(json.dumps(message["data"]), strict=True)

    def _merge(self, name: str, data: dict[str, Any]) -> None:
        topic, known = self.subs[name]["topic"], self.state[name]
        if topic == "series":
            for points in data["points"]:
                _add(known["series"], points)
        elif topic in ("timeline", "logs"):
            known["items"] += data["items"]
        elif topic == "heat":
            pass  # its cells are read as they came
        elif topic == "job":
            known.update(data)
        elif topic == "cluster":
            for part, news in data.items():
                known[part] = news if part == "queue" else _put(known[part], news)
        else:
            known["items"] = _put(known["items"], data)


def _put(known: list[dict[str, Any]], news: dict[str, Any]) -> list[dict[str, Any]]:
    """Return items of which some have changed, come or gone."""
    changed = {item["id"]: item for item in news["items"]}
    kept = [item for item in known if item["id"] not in news.get("gone", ())]
    return [*(changed.pop(item["id"], item) for item in kept), *changed.values()]


def _add(series: list[dict[str, Any]], points: dict[str, Any]) -> None:
    key = {name: points[name] for name in ("name", "rank", "role")}
    found = next((one for one in series if key.items() <= one.items()), None)
    if found is None:
        found = {**key, **{name: [] for name in POINT}, "has_replaced": False, "replaced": []}
        series.append(found)
    for step, at, value in zip(points["steps"], points["times"], points["values"], strict=True):
        assert not found["steps"] or step > found["steps"][-1], "a page only adds behind"
        row = (step, step, at, value, value, value, 1, int(value is None))
        for name, each in zip(POINT, row, strict=True):
            found[name].append(each)


def _holds(is_so: Callable[[Page], object], page: Page) -> bool:
    try:
        return bool(is_so(page))
    except (KeyError, StopIteration, IndexError):
        return False
