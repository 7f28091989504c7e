"""What would come of saying that devices are so, in words, and the commands that say the same."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchloom.weaver.health.responses import FAILED, REPLACED, RESTARTED, SHRUNK, STAYS

_VERBS = {"failed": "fail", "draining": "drain", "healthy": "recover"}
_THEN = {
    REPLACED: "and replaced while the others wait",
    RESTARTED: "and the job starts again from what it saved last",
    SHRUNK: "and the job goes on without {them}",
    FAILED: "and the job fails",
}
_ALONE = {
    "failed": "No rank uses {it}, so nobody is ended.",
    "draining": "No rank uses {it}, so nothing ends.",
    "healthy": "No rank uses {it}.",
}
_QUEUE = {
    "failed": "The queue gives {it} to no job.",
    "draining": "The queue gives {it} to no further job.",
    "healthy": "The queue may give {it} to jobs again.",
}
_SLOTS = (
    "CPU slots are counted, not dealt: the queue and ranks that are replaced use them all the same."
)

Devices = Sequence[Mapping[str, Any]]


def outlook(state: str, devices: Devices, jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what would happen, what one may not expect, and the commands."""
    changed = [one for one in devices if one["state"] != state]
    return {
        "state": state,
        "devices": [one["uuid"] for one in changed],
        "summary": _lines(state, changed, jobs) if changed else [_already(state, devices)],
        "warnings": [_SLOTS] if state != "healthy" and _slots(changed) else [],
    }


def command_line(state: str, devices: Devices, reason: str) -> str:
    """Return the `loom` commands that say the same, in one line."""
    more = ["--reason", reason] if reason else []
    return " && ".join(
        shlex.join(["loom", "devices", _VERBS[state], one["uuid"], *more])
        for one in devices
        if one["state"] != state
    )


def _lines(state: str, changed: Devices, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    it = _so(changed, "it", "them")
    lines = [_line(state, job) for job in jobs] or [_ALONE[state].format(it=it)]
    is_dealt = len(_slots(changed)) < len(changed)
    return [*lines, *([_QUEUE[state].format(it=it)] if is_dealt else [])]


def _line(state: str, job: Mapping[str, Any]) -> str:
    ranks, name = job["ranks"], job["job"]
    if state == "healthy":
        return f"{_ranks(ranks)} of {name} {_so(ranks, 'goes', 'go')} on there."
    if job["then"] == STAYS:
        until = _so(ranks, "goes on until it ends", "go on until they end")
        return f"{_ranks(ranks)} of {name} {until}."
    ends = job["ends"]
    then = _THEN[job["then"]].format(them=_so(ends, "it", "them"))
    return f"{_ranks(ends)} of {name} {_so(ends, 'is', 'are')} ended at once, {then}."


def _already(state: str, devices: Devices) -> str:
    return f"{_so(devices, 'It is', 'They are all')} {state} already."


def _ranks(ranks: Sequence[int]) -> str:
    return f"{_so(ranks, 'Rank', 'Ranks')} {', '.join(map(str, ranks))}"


def _so(things: Sequence[Any], one: str, many: str) -> str:
    return one if len(things) == 1 else many


def _slots(devices: Devices) -> list[Mapping[str, Any]]:
    return [one for one in devices if one["kind"] == "cpu"]
