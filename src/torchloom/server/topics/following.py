"""Which topic is read how: those that are whole at every moment, and those that grow."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from torchloom.server import audit
from torchloom.server.auth import Identity
from torchloom.server.cursors import Position
from torchloom.server.desk import Desk
from torchloom.server.listeners import Listener, Wish
from torchloom.server.live import Hub
from torchloom.server.policy import OPERATOR
from torchloom.server.topics import cluster, detail, rows
from torchloom.server.topics.asked import Sub
from torchloom.server.topics.boards import Boards, Look
from torchloom.server.topics.feeds import Feed
from torchloom.server.topics.heat import HeatShaper
from torchloom.server.topics.logs import LogsShaper, ranks_of
from torchloom.server.topics.saying import Voice
from torchloom.server.topics.series import SeriesShaper
from torchloom.server.topics.timeline import NOBODYS, TimelineShaper
from torchloom.server.verifying import Checks

_COMMANDS, _COMMANDS_INTERVAL = 50, 0.25  # the newest, and seconds between two looks
_CHECKS_INTERVAL = 0.25
_METRICS, _EVENTS = frozenset({"metric"}), frozenset({"state", "event"})
_LINES = frozenset({"log"})

Items = list[dict[str, Any]]
Shape = Callable[[Any, Any], Any]  # of what a page has and what there is: what it is told


class Following:
    """Follows topics for one page."""

    def __init__(self, state: State, desk: Desk, voice: Voice, who: Identity) -> None:
        self._boards: Boards = state.boards
        self._hub: Hub = state.live
        self._rows: rows.JobRows = state.rows
        self._checks: Checks = state.checks
        self._desk = desk
        self._voice = voice
        self._who = who

    async def follow(self, sub: Sub, position: Position | None) -> None:
        """Follow one topic until cancelled."""
        job = await self._desk.job(sub.job) if sub.job else ""
        if sub.topic == "series":
            await self._series(sub, job, position)
        elif sub.topic == "heat":
            shaper = HeatShaper(self._desk, self._voice, sub, job)
            await Feed(self._hub, self._voice, shaper, [Listener(job, Wish(_METRICS))]).run(None)
        elif sub.topic == "timeline":
            await self._timeline(sub, job, position)
        elif sub.topic == "logs":
            await self._logs(sub, job, position)
        elif sub.topic == "jobs":
            await self._board(sub, "", self._rows.look, rows.INTERVAL, _listed)
        elif sub.topic == "cluster":
            look = cluster.Cluster(self._boards).look
            await self._board(sub, "", look, cluster.INTERVAL, cluster.changes)
        elif sub.topic == "job":
            look = detail.JobDetail(self._boards, self._rows, job).look
            await self._board(sub, job, look, detail.INTERVAL, self._detailed)
        elif sub.topic == "checks":
            await self._board(sub, job, partial(self._checked, job), _CHECKS_INTERVAL, _listed)
        else:
            await self._board(sub, job, partial(self._commands, job), _COMMANDS_INTERVAL, _listed)

    async def _series(self, sub: Sub, job: str, position: Position | None) -> None:
        ranks = frozenset(sub.ranks) if sub.ranks else None
        listener = Listener(job, Wish(_METRICS, ranks))
        shaper = SeriesShaper(self._desk, self._voice, sub, job)
        await Feed(self._hub, self._voice, shaper, [listener]).run(position)

    async def _timeline(self, sub: Sub, job: str, position: Position | None) -> None:
        listeners = [Listener(name, Wish(_EVENTS)) for name in (job, NOBODYS)]
        shaper = TimelineShaper(self._desk, self._voice, sub, job)
        await Feed(self._hub, self._voice, shaper, listeners).run(position)

    async def _logs(self, sub: Sub, job: str, position: Position | None) -> None:
        ranks = await self._desk.read(ranks_of, self._desk, job, sub)
        shaper = LogsShaper(self._desk, self._voice, self._hub.patterns, sub, job)
        await Feed(self._hub, self._voice, shaper, [Listener(job, Wish(_LINES, ranks))]).run(
            position
        )

    async def _board(self, sub: Sub, job: str, look: Look, interval: float, shape: Shape) -> None:
        """Say a thing whole, then whatever of it is another."""
        with self._boards.watched((sub.topic, job), look, interval) as board:
            known, version = None, 0
            while self._voice.is_open:
                found = await board.changed(version)
                version = board.version
                data = shape(known, found)
                if known is None:
                    self._voice.whole(sub.id, "", data)
                elif data:
                    self._voice.more(sub.id, "", data)
                known = found
                await self._voice.outlet.drained()

    async def _commands(self, job: str) -> Items:
        return await self._desk.read(audit.newest, self._desk.store, job, _COMMANDS)

    async def _checked(self, job: str) -> Items:
        return self._checks.of(job)

    def _detailed(self, known: Any, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a job that are others; who may not act is offered nothing."""
        parts = {name: value for name, value in found.items() if not known or value != known[name]}
        if "verbs" in parts and not self._who.may(OPERATOR):
            parts["verbs"] = []
        return parts


def _listed(known: Items | None, found: Items) -> dict[str, Any]:
    """Return the items that are others, and those that are there no longer."""
    if known is None:
        return {"items": found}
    before = {item["id"]: item for item in known}
    gone = before.keys() - {item["id"] for item in found}
    changed = [item for item in found if before.get(item["id"]) != item]
    return {"items": changed, "gone": sorted(gone)} if changed or gone else {}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have boards for as long as an app is served."""
    app.state.boards = boards = Boards(app.state.desk)
    app.state.rows = rows.JobRows(boards, rows.Pace())
    try:
        yield
    finally:
        boards.close()
