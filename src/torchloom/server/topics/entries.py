"""What happened to a job as lines of its timeline: of which sort each is, and in a few words; pure.

Entries are made of the same messages that a job's stream has, whether these are new or old.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from torchloom.server.drafts import Draft
from torchloom.specs.states import JobState

_LONGEST = 4096  # bytes of facts that an entry carries along
_WELL = ("", "ended", "ranks_ended", "succeeded", "released", "cancelled", "stopped")  # of ranks
_NO_NEWS = "job"  # a rank says what its job is called, or how many steps it has
_OVER = ("applied", "refused", "aborted")  # of a command that is on its way nothing is entered
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
FAILURES = (  # what is listed however much came after it; of states only those that failed
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


def entry_of(draft: Draft) -> dict[str, Any] | None:
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


def newest(entries: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the newest entries, oldest first; failures before them are there, too."""
    cut = max(0, len(entries) - limit)
    return [entry for entry in entries[:cut] if entry["is_failure"]] + list(entries[cut:])


def is_of_nodes(draft: Draft) -> bool:
    """Tell whether a message that is of no job is about a node or a device, and of no person."""
    return str(draft.body.get("kind", "")).startswith(("agent_", "device_"))


def concerns(entry: Mapping[str, Any], nodes: frozenset[str]) -> bool:
    """Tell whether what happened to a node or a device happened to one of these."""
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
    """Return knobs with what they were and are; of one alone a rank tells the bare value."""
    payload, before, after = facts["payload"], facts["before"], facts["after"]
    if len(payload) == 1:
        before, after = (dict.fromkeys(payload, value) for value in (before, after))
    parts = []
    for name, wish in payload.items():
        was, now = ((said or {}).get(name) for said in (before, after))
        now = wish["value"] if now is None else now
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
    """Tell of what may be a failure whether it is: not every end of a job or a rank is one."""
    if what == "job_state":
        return title == str(JobState.FAILED)
    reason = str(body.get("reason", ""))
    is_own = reason.endswith(f"_rank_{body['rank']}") or "_rank_" not in reason
    is_well = reason in _WELL or reason.startswith("exit_code_0")
    return what != "rank_gone" or (is_own and not is_well)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
