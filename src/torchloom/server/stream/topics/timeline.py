"""The timeline of a job: the actions of users, and the events of the job and its nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from torchloom.server.plane_access import PlaneAccess
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.payloads import StreamPayload, of_event, of_rank_event
from torchloom.server.stream.topics.socket_messages import PageWriter, Sub
from torchloom.server.text import whole
from torchloom.specs.states import JobState
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import RankProcessRow
from torchloom.weaver.views import EventPosition

_LONGEST = 4096  # bytes of facts that an entry carries along
_WELL = ("", "ended", "ranks_ended", "succeeded", "released", "cancelled", "stopped")  # of ranks
_NO_NEWS = "job"  # a rank reports the name of its job, or its number of steps
_OVER = ("applied", "refused", "aborted")  # a command under way has no entry
_SORTS: Mapping[str, str] = {
    "restart": "restart",
    "resume": "restart",
    "regrouping": "recovery",
    "recovered": "recovery",
    "live_ended": "recovery",
    "not_live": "recovery",
    "shrink": "recovery",
    "drain": "recovery",
    "generation": "recovery",
    "restored": "recovery",
    "rejoined": "recovery",
    "rank_up": "rank",
    "rank_gone": "rank",
    "rank_suspect": "alert",
    "rank_cleared": "rank",
    "hang": "alert",
    "verdict": "alert",
    "notice": "alert",
    "kill": "alert",
    "fail": "alert",
    "nan": "alert",
    "loss_not_finite": "alert",
    "device_failed": "alert",
    "cancelled": "state",
}
FAILURES = (  # always listed, whatever follows; of states only the failed ones
    *("restart", "live_ended", "not_live", "rank_gone", "rank_suspect", "hang", "verdict", "kill"),
    *("fail", "nan", "device_failed", "agent_lost", "checkpoint_failed", "checkpoint_damaged"),
    "job_state",
)
_BEGINNINGS: Mapping[str, str] = {
    "checkpoint": "checkpoint",
    "guard_": "knob",
    "agent_": "node",
    "device_": "node",
}
NO_JOB = ""  # the job of events of nodes and devices
_NODES = 500  # events of nodes that are searched for those of a job
_FAILED = 100  # failures that are shown, however long ago they were
_MISSED = 1000  # events that are sent one by one to a client that resumes
_NONE: frozenset[str] = frozenset()


def entry_of(draft: StreamPayload) -> dict[str, Any] | None:
    """Return the line for a message; nothing for one that is none of a timeline."""
    body = draft.body
    if draft.kind == "state":
        return _entry(body, "state", "job_state", str(body["status"]))
    what, facts = str(body["kind"]), body["facts"]
    if what == _NO_NEWS:
        return None
    if what.startswith("command_"):
        return _command(body, what) if what.removeprefix("command_") in _OVER else None
    beginnings = (sort for start, sort in _BEGINNINGS.items() if what.startswith(start))
    sort = _SORTS.get(what) or next(beginnings, "event")
    return _entry(body, sort, what, _words(what, body, facts))


def newest_entries(entries: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the newest entries, oldest first; failures before them are there, too."""
    cut = max(0, len(entries) - limit)
    return [entry for entry in entries[:cut] if entry["is_failure"]] + list(entries[cut:])


def is_of_nodes(draft: StreamPayload) -> bool:
    """Return whether a message of no job is about a node or a device."""
    return str(draft.body.get("kind", "")).startswith(("agent_", "device_"))


def concerns(entry: Mapping[str, Any], nodes: frozenset[str]) -> bool:
    """Return whether an entry is about one of these nodes or devices."""
    facts = entry["facts"]
    return bool({facts.get("agent"), facts.get("device"), facts.get("uuid")} & nodes)


def _command(body: Mapping[str, Any], what: str) -> dict[str, Any]:
    facts = body["facts"]
    sort = "knob" if facts["kind"] == "knob" else "command"
    state = what.removeprefix("command_")
    title = _changes(facts) if sort == "knob" else str(facts["kind"]).replace("_", " ")
    entry = _entry(body, sort, what, title if state == "applied" else f"{title}: {state}")
    more = {"before": facts["before"], "after": facts["after"], "command": facts["command"]}
    return {**entry, **more}


def _changes(facts: Mapping[str, Any]) -> str:
    """Return knobs with their old and new values; a single knob has bare values."""
    payload, before, after = facts["payload"], facts["before"], facts["after"]
    if len(payload) == 1:
        before, after = (dict.fromkeys(payload, value) for value in (before, after))
    parts = []
    for name, change in payload.items():
        was, now = ((values or {}).get(name) for values in (before, after))
        now = change["value"] if now is None else now
        parts.append(f"{name} {now}" if was is None else f"{name} {_shown(was)} -> {_shown(now)}")
    return ", ".join(parts)


def _words(what: str, body: Mapping[str, Any], facts: Any) -> str:
    if what == "nan" and isinstance(facts, dict):
        return f"{facts.get('name')} is {'NaN' if facts.get('value') == 'nan' else 'not finite'}"
    words = what.replace("_", " ")
    if body["rank"] is not None and body["rank"] >= 0 and "rank" in what:
        words = words.replace("rank", f"rank {body['rank']}", 1)
    where = facts.get("agent") or facts.get("device") if isinstance(facts, dict) else None
    return f"{words} {where}" if where else words


def _entry(body: Mapping[str, Any], sort: str, what: str, title: str) -> dict[str, Any]:
    is_ours = body.get("from", "weaver") == "weaver"
    facts = body.get("facts") or {}
    is_short = isinstance(facts, dict) and len(msgspec.json.encode(facts)) <= _LONGEST
    return {
        "key": f"{'w' if is_ours else 'r'}{body['seq']}",
        "seq": body["seq"],
        "time": body["time"],
        "step": body.get("step"),
        "kind": sort,
        "title": title,
        "what": what,
        "author": body.get("author", ""),
        "reason": body.get("reason", ""),
        "rank": body["rank"],
        "before": None,
        "after": None,
        "command": None,
        "facts": facts if is_short else {},
        "is_failure": what in FAILURES and _has_failed(what, title, body),
    }


def _has_failed(what: str, title: str, body: Mapping[str, Any]) -> bool:
    """Return whether a possible failure is one: not every end of a job or a rank is."""
    if what == "job_state":
        return title == str(JobState.FAILED)
    reason = str(body.get("reason", ""))
    is_own = reason.endswith(f"_rank_{body['rank']}") or "_rank_" not in reason
    is_well = reason in _WELL or reason.startswith("exit_code_0")
    return what != "rank_gone" or (is_own and not is_well)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class TimelineShaper:
    """What one page has of a job's timeline."""

    def __init__(self, access: PlaneAccess, writer: PageWriter, sub: Sub, job: str) -> None:
        self._access = access
        self._writer = writer
        self._sub = sub
        self._job = job
        self._happened = 0
        self._reported = 0

    async def begin(self, position: Position | None) -> Position | None:
        """Resume from a cursor, unless so much was missed that the newest entries suffice."""
        if position is None or position.happened is None or position.reported is None:
            return None
        place = (position.happened, position.reported)
        if not await self._access.read(_is_near, self._access.store, self._job, place):
            return None
        self._happened, self._reported = place
        return Position(happened=position.happened, reported=position.reported)

    async def whole(self) -> None:
        """Send the newest entries, oldest first."""
        drafts, place = await self._access.read(_newest, self._access.store, self._job)
        self._happened, self._reported = place
        items = await self._entries(drafts)
        shown = newest_entries(items, self._sub.limit)
        self._writer.whole(self._sub.id, self._cursor(), {"items": shown})

    async def more(self, drafts: Sequence[StreamPayload], upto: Position, is_first: bool) -> None:
        """Send new entries."""
        items = await self._entries([draft for draft in drafts if self._is_new(draft)])
        self._happened = max(self._happened, upto.happened or 0)
        self._reported = max(self._reported, upto.reported or 0)
        if items or is_first:
            self._writer.more(self._sub.id, self._cursor(), {"items": items})

    async def _entries(self, drafts: Sequence[StreamPayload]) -> list[dict[str, Any]]:
        of_nodes = [draft for draft in drafts if draft.job == NO_JOB]
        nodes = (
            await self._access.read(_nodes, self._access.store, self._job) if of_nodes else _NONE
        )
        return _kept(drafts, nodes)

    def _is_new(self, draft: StreamPayload) -> bool:
        if "happened" in draft.move:
            return bool(draft.move["happened"] > self._happened)
        return bool(draft.move["reported"] > self._reported)

    def _cursor(self) -> str:
        return str(Position(happened=self._happened, reported=self._reported))


def newest_of_job(store: PlaneReader, job: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest entries, oldest first, for a single read."""
    drafts, _ = _newest(store, job)
    return newest_entries(_kept(drafts, _nodes(store, job)), limit)


def _kept(drafts: Sequence[StreamPayload], nodes: frozenset[str]) -> list[dict[str, Any]]:
    """Return the entries of a job: its own, and of nodes and devices those that it has."""
    found: list[dict[str, Any]] = []
    for draft in drafts:
        if draft.job == NO_JOB and not is_of_nodes(draft):
            continue
        entry = entry_of(draft)
        if entry is not None and (draft.job != NO_JOB or concerns(entry, nodes)):
            found.append(entry)
    items: list[dict[str, Any]] = whole(found)
    return items


def _newest(store: PlaneReader, job: str) -> tuple[list[StreamPayload], EventPosition]:
    """Return the newest of all sources by time, and where they end: what comes while they are read
    is new to all of them."""
    ends = store.state.last_happened(limit=1), store.records.last_events(limit=1)
    upto = (ends[0][-1].seq if ends[0] else 0), (ends[1][-1].id if ends[1] else 0)
    state, records = store.state, store.records
    happened = state.last_happened(job, _MISSED) + state.last_happened(NO_JOB, _NODES)
    happened += state.last_happened(job, _FAILED, FAILURES)  # behind however many checkpoints
    reported = records.last_events(job, _MISSED) + records.last_events(job, _FAILED, FAILURES)
    ours = {row.seq: row for row in happened if row.seq <= upto[0]}
    theirs = {row.id: row for row in reported if row.id <= upto[1]}
    drafts = [
        *(of_event(ours[seq]) for seq in sorted(ours)),
        *(of_rank_event(theirs[number]) for number in sorted(theirs)),
    ]
    return sorted(drafts, key=lambda draft: draft.time), upto


def _is_near(store: PlaneReader, job: str, place: EventPosition) -> bool:
    happened = store.state.happened(job, place[0], _MISSED)
    reported = store.records.events(job, place[1], _MISSED)
    nodes = store.state.happened(NO_JOB, place[0], _NODES)
    return len(happened) < _MISSED and len(reported) < _MISSED and len(nodes) < _NODES


def _nodes(store: PlaneReader, job: str) -> frozenset[str]:
    """Return the agents and the devices that a job's ranks have."""
    ranks = store.state.find(RankProcessRow, job=job)
    devices = {str(device) for rank in ranks for device in rank.devices}
    return frozenset({rank.agent for rank in ranks} | devices)
