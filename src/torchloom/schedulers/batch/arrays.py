"""A job of several parts, the tasks of an array among them, as one. Pure."""

import re
from collections.abc import Iterable
from dataclasses import replace

from torchloom.schedulers.batch.query import EngineJob
from torchloom.specs.api import AppState

# Of the states of several parts, the first that any is in is that of all.
_ORDER = (
    *(AppState.RUNNING, AppState.PENDING, AppState.UNKNOWN),
    *(AppState.FAILED, AppState.CANCELLED),
)


def joined(job: str, parts: list[EngineJob]) -> EngineJob:
    """Return parts as the job they are of; one that is whole stays as it is."""
    if len(parts) == 1 and parts[0].id == job:
        return parts[0]
    ordered = sorted(parts, key=lambda part: _by_number(part.id))
    state, leading = _leading(ordered)
    hosts = tuple(dict.fromkeys(host for part in ordered for host in part.hosts))
    restarts = max(part.restarts for part in parts)
    tasks = tuple(ordered)
    return replace(leading, id=job, state=state, hosts=hosts, restarts=restarts, tasks=tasks)


def _by_number(part: str) -> list[str | int]:
    """Return what puts part 10 behind part 9."""
    return [int(word) if word.isdecimal() else word for word in re.split("([0-9]+)", part)]


def _leading(parts: Iterable[EngineJob]) -> tuple[AppState, EngineJob]:
    known = list(parts)
    for state in _ORDER:
        for part in known:
            if part.state is state:
                return state, part
    return known[0].state, known[0]
