"""The timeline of a job: what people did to it, what befell it and its nodes, as it comes."""

from collections.abc import Sequence
from typing import Any

from torchloom.server.cursors import Position
from torchloom.server.desk import Desk
from torchloom.server.drafts import Draft, of_happening, of_told
from torchloom.server.letters import whole
from torchloom.server.topics import entries
from torchloom.server.topics.asked import Sub
from torchloom.server.topics.entries import FAILURES, concerns, entry_of, is_of_nodes
from torchloom.server.topics.saying import Voice
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import RankProcessRow
from torchloom.weaver.views import EventPosition

NOBODYS = ""  # the job of what happens to nodes and devices
_NODES = 500  # events of nodes that are looked through for those of a job
_FAILED = 100  # failures that are shown, however long ago they were
_MISSED = 1000  # events that are told one by one to somebody who comes back


class TimelineShaper:
    """What one page has of a job's timeline."""

    def __init__(self, desk: Desk, voice: Voice, sub: Sub, job: str) -> None:
        self._desk = desk
        self._voice = voice
        self._sub = sub
        self._job = job
        self._happened = 0
        self._told = 0

    async def begin(self, position: Position | None) -> Position | None:
        """Go on from a cursor, unless so much was missed that the newest are enough."""
        if position is None or position.happened is None or position.told is None:
            return None
        place = (position.happened, position.told)
        if not await self._desk.read(_is_near, self._desk.store, self._job, place):
            return None
        self._happened, self._told = place
        return Position(happened=position.happened, told=position.told)

    async def whole(self) -> None:
        """Say the newest entries, oldest first."""
        drafts, place = await self._desk.read(_newest, self._desk.store, self._job)
        self._happened, self._told = place
        items = await self._entries(drafts)
        shown = entries.newest(items, self._sub.limit)
        self._voice.whole(self._sub.id, self._cursor(), {"items": shown})

    async def more(self, drafts: Sequence[Draft], upto: Position, is_first: bool) -> None:
        """Say new entries."""
        items = await self._entries([draft for draft in drafts if self._is_new(draft)])
        self._happened = max(self._happened, upto.happened or 0)
        self._told = max(self._told, upto.told or 0)
        if items or is_first:
            self._voice.more(self._sub.id, self._cursor(), {"items": items})

    async def _entries(self, drafts: Sequence[Draft]) -> list[dict[str, Any]]:
        of_nodes = [draft for draft in drafts if draft.job == NOBODYS]
        nodes = await self._desk.read(_nodes, self._desk.store, self._job) if of_nodes else _NONE
        return _kept(drafts, nodes)

    def _is_new(self, draft: Draft) -> bool:
        if "happened" in draft.move:
            return bool(draft.move["happened"] > self._happened)
        return bool(draft.move["told"] > self._told)

    def _cursor(self) -> str:
        return str(Position(happened=self._happened, told=self._told))


_NONE: frozenset[str] = frozenset()


def newest(store: PlaneReader, job: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest entries, oldest first, for whoever reads them once."""
    drafts, _ = _newest(store, job)
    return entries.newest(_kept(drafts, _nodes(store, job)), limit)


def _kept(drafts: Sequence[Draft], nodes: frozenset[str]) -> list[dict[str, Any]]:
    """Return the entries of a job: its own, and of nodes and devices those that it has."""
    found: list[dict[str, Any]] = []
    for draft in drafts:
        if draft.job == NOBODYS and not is_of_nodes(draft):
            continue
        entry = entry_of(draft)
        if entry is not None and (draft.job != NOBODYS or concerns(entry, nodes)):
            found.append(entry)
    items: list[dict[str, Any]] = whole(found)
    return items


def _newest(store: PlaneReader, job: str) -> tuple[list[Draft], EventPosition]:
    """Return the newest of all sources by time, and where they end: what comes while they are read
    is new to all of them."""
    ends = store.state.last_happened(limit=1), store.records.last_events(limit=1)
    upto = (ends[0][-1].seq if ends[0] else 0), (ends[1][-1].id if ends[1] else 0)
    state, records = store.state, store.records
    happened = state.last_happened(job, _MISSED) + state.last_happened(NOBODYS, _NODES)
    happened += state.last_happened(job, _FAILED, FAILURES)  # behind however many checkpoints
    reported = records.last_events(job, _MISSED) + records.last_events(job, _FAILED, FAILURES)
    ours = {row.seq: row for row in happened if row.seq <= upto[0]}
    theirs = {row.id: row for row in reported if row.id <= upto[1]}
    drafts = [
        *(of_happening(ours[seq]) for seq in sorted(ours)),
        *(of_told(theirs[number]) for number in sorted(theirs)),
    ]
    return sorted(drafts, key=lambda draft: draft.time), upto


def _is_near(store: PlaneReader, job: str, place: EventPosition) -> bool:
    happened = store.state.happened(job, place[0], _MISSED)
    told = store.records.events(job, place[1], _MISSED)
    nodes = store.state.happened(NOBODYS, place[0], _NODES)
    return len(happened) < _MISSED and len(told) < _MISSED and len(nodes) < _NODES


def _nodes(store: PlaneReader, job: str) -> frozenset[str]:
    """Return the agents and the devices that a job's ranks have."""
    ranks = store.state.find(RankProcessRow, job=job)
    devices = {str(device) for rank in ranks for device in rank.devices}
    return frozenset({rank.agent for rank in ranks} | devices)
