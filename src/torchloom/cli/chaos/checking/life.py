"""Judge what the databases have: the job's own life, and that nothing counted twice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.rows import Row
from torchloom.cli.chaos.checking.verdicts import Verdict, first, unknown

_GOING_ON = {"QUEUED", "FAILED", "CANCELLED"}
EDGES = {  # written down a second time, so that a mistake in the first shows
    "QUEUED": {"RUNNING", "FAILED", "CANCELLED"},
    "RUNNING": {"COMPLETED", "RECOVERING", "PAUSED", *_GOING_ON},
    "RECOVERING": {"RUNNING", "PAUSED", *_GOING_ON},
    "PAUSED": {"RUNNING", "RECOVERING", *_GOING_ON},
}
_RESUMED = ("resumed", "generation_", "started_again")


def along_edges(found: Evidence) -> Verdict:
    """I5: each change is one event, along an edge that exists; together they give the row."""
    if found.base.why or not found.base.jobs:
        return unknown("I5", found.base.why or "no database knows the job")
    changes = [row for row in found.base.events if row["kind"] == "job_state"]
    steps = [(row["facts"]["before"], row["facts"]["after"]) for row in changes]
    return first("I5", *_off_edges(changes), *_gaps(steps), *_replayed(found, steps))


def _off_edges(changes: Sequence[Row]) -> Iterator[str]:
    for row in changes:
        before, after = row["facts"]["before"], row["facts"]["after"]
        is_resumed = after == "QUEUED" and row["reason"].startswith(_RESUMED)
        if after not in EDGES.get(before, set()) and not is_resumed:
            yield f"event {row['seq']}: {before} -> {after} ({row['reason'] or 'no reason'})"
        elif not row["reason"]:
            yield f"event {row['seq']}: {before} -> {after} without a reason"


def _gaps(steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    for (_, after), (before, to) in pairwise(steps):
        if after != before:
            yield f"it was {after}, and the next event goes from {before} to {to}"


def _replayed(found: Evidence, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    state = found.base.jobs[0]["state"]
    begun = {row["kind"] for row in found.base.events} & {"job_started", "submitted"}
    if steps and steps[-1][1] != state:
        yield f"the job is {state}, its events end with {steps[-1][1]}"
    if not steps and begun and state not in ("RUNNING", "QUEUED"):
        yield f"the job is {state}, and no event says so"


def counts_once(found: Evidence) -> Verdict:
    """I7: a command acts once, a record is stored once, a life begins once."""
    if found.base.why or not found.base.jobs:
        return unknown("I7", found.base.why or "no database knows the job")
    applied = (row for row in found.base.events if row["kind"] == "command_applied")
    return first(
        "I7",
        *_twice("command {} was applied {} times", [row["facts"]["command"] for row in applied]),
        *_twice("command {} is stored {} times", [row["id"] for row in found.base.commands]),
        *_twice("record {} is stored {} times", [_key(row) for row in found.base.told]),
        *_twice("life {} began {} times", _begun(found.base.told)),
    )


def _twice(words: str, names: Sequence[object]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield words.format(name, count)


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("rank", "incarnation", "number"))


def _begun(told: Sequence[Row]) -> list[str]:
    return [row["incarnation"] for row in told if row["kind"] == "init"]
