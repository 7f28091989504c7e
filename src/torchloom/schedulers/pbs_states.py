"""What PBS says of a job's state and of its end, and how its answers are read. Pure.

`qstat -f -F json` has what looks like a number as one, a job's name among them; a job that has
ended is in it with `-x`, as long as the server keeps its history.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchloom.errors import Failure
from torchloom.schedulers.batch.arrays import joined
from torchloom.schedulers.batch.query import EngineJob
from torchloom.specs.api import AppState, is_terminal

# What AppState it is, and the word that tells it from the others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "Q": (AppState.PENDING, ""),
    "H": (AppState.PENDING, "held"),
    "W": (AppState.PENDING, "begin_time"),
    "T": (AppState.PENDING, "in_transit"),
    "M": (AppState.PENDING, "moved"),  # to another server
    "S": (AppState.PENDING, "suspended"),
    "U": (AppState.PENDING, "suspended_by_user"),  # of a workstation
    "R": (AppState.RUNNING, ""),
    "B": (AppState.RUNNING, ""),  # an array of which something has run
    "E": (AppState.RUNNING, "completing"),  # it still holds its nodes
}
OVER = ("F", "X")  # X: a task whose array is not over
# Exit codes by which PBS says that it, and not the job, made the end.
ENDS: Mapping[int, str] = {
    **dict.fromkeys((-1, -2, -3, -7, -10, -13, -21, -23, -30), "launch_failed"),
    **dict.fromkeys((-4, -5, -6, -14, -20), "node_failure"),  # its daemon, or a sister's
    **dict.fromkeys((-16, -17, -18, -19, -22), "hook"),
    -11: "rerun",
    -12: "checkpointed",
    **dict.fromkeys((-24, -25), "cpu_limit"),
    **dict.fromkeys((-26, -27), "out_of_memory"),
    -28: "cpu_time_limit",
    -29: "time_limit",
}
LIMITS = {"walltime": "time_limit", "cput": "cpu_time_limit", "ncpus": "cpu_limit"}
HOLDS = {"s": "held_by_system", "o": "held_by_operator", "u": "held", "p": "bad_password"}
SIGNALS = 256  # what is added to a signal that ended the script
DELETED = 91  # a substate

Attributes = Mapping[str, Any]


def question(jobs: Iterable[str]) -> list[str]:
    """Return the words that ask for these jobs and their tasks, those that have ended too."""
    return ["qstat", "-x", "-t", "-f", "-F", "json", *jobs]


def number(identifier: str) -> str:
    """Return a job's name without its server's: `12`, or `12[]` for an array."""
    return identifier.strip().partition(".")[0]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array is one, of its tasks."""
    if not printed.strip():
        return {}
    try:
        told = json.loads(printed, strict=False).get("Jobs", {})
    except (ValueError, AttributeError) as error:
        raise Failure(f"qstat printed no JSON: {error}; is this PBS Pro 18 or later?") from error
    parts: dict[str, list[EngineJob]] = {}
    wholes: dict[str, Attributes] = {}
    for name, attributes in told.items():
        mine = number(name)
        whole = re.sub(r"\[\d+\]", "[]", mine)
        if whole == mine and mine.endswith("[]"):
            wholes[whole] = attributes
        else:
            parts.setdefault(whole, []).append(_job(mine, attributes))
    found = {job: joined(job, tasks) for job, tasks in parts.items()}
    return found | {job: _array(job, told, found.get(job)) for job, told in wholes.items()}


def _array(job: str, attributes: Attributes, tasks: EngineJob | None) -> EngineJob:
    """Return an array: what its tasks say, and its own word where they are silent."""
    own = _job(job, attributes)
    if tasks is None or (is_terminal(own.state) and tasks.state is AppState.SUCCEEDED):
        return replace(own, tasks=tasks.tasks if tasks else ())
    return replace(tasks, name=own.name)


def _job(job: str, attributes: Attributes) -> EngineJob:
    letter = str(attributes.get("job_state", ""))
    state, why = STATES.get(letter, (AppState.UNKNOWN, letter.lower()))
    runs = _int(attributes.get("run_count"))
    if letter in OVER:
        state, why = _ended(attributes, letter)
    elif state is AppState.PENDING:
        why = _waits(attributes, letter, why, runs)
    waits_again = letter in ("Q", "H", "W")
    return EngineJob(
        id=job,
        state=state,
        native=letter,
        why=why,
        hosts=_hosts(str(attributes.get("exec_host", ""))),
        restarts=max(0, runs if waits_again else runs - 1),
        exit_code=_exit_code(_int(attributes.get("Exit_status"))),
        name=str(attributes.get("Job_Name", "")),
    )


def _waits(attributes: Attributes, letter: str, why: str, runs: int) -> str:
    """Return why a job does not run, in PBS's own words where it has some."""
    if letter == "H":
        kinds = str(attributes.get("Hold_Types", ""))
        why = next((word for kind, word in HOLDS.items() if kind in kinds), why)
        why = "dependency" if why == "held_by_system" and attributes.get("depend") else why
    if letter in ("Q", "H") and runs:
        why = f"requeued: {why}" if why else "requeued"
    comment = str(attributes.get("comment", ""))
    said = re.fullmatch(r"(?:Not Running: |(?=[Jj]ob held))(.*)", comment, re.DOTALL)
    if said and letter in ("Q", "H"):
        return f"{why}: {said[1]}" if why else said[1]
    return why


def _ended(attributes: Attributes, letter: str) -> tuple[AppState, str]:
    """Return how a job ended: PBS's own doing first, then what the script exited with."""
    comment, status = str(attributes.get("comment", "")), attributes.get("Exit_status")
    deleted = attributes.get("substate") == DELETED
    if over := re.search(r"exceeded resource (\w+)", comment):
        return AppState.FAILED, LIMITS.get(over[1], "out_of_memory")
    if isinstance(status, int) and status < 0:
        return AppState.FAILED, ENDS.get(status, "launch_failed")
    if "failed attempts" in comment:
        return AppState.FAILED, "launch_failed"
    if deleted or (status is None and "exec_host" not in attributes and letter == "F"):
        is_vain = "depend" in comment.lower()
        return AppState.CANCELLED, "dependency_failed" if is_vain else "cancelled"
    if status is None:
        return (AppState.FAILED, "node_failure") if letter == "F" else (AppState.SUCCEEDED, "")
    if status == 0:
        return AppState.SUCCEEDED, ""
    if _int(status) < SIGNALS:
        return AppState.FAILED, ""
    return AppState.FAILED, "time_limit" if _has_used_up(attributes) else f"signal_{status % 256}"


def _has_used_up(attributes: Attributes) -> bool:
    """Tell whether its time was over: releases that say so nowhere else end a job by a signal."""
    used = (attributes.get("resources_used") or {}).get("walltime")
    limit = (attributes.get("Resource_List") or {}).get("walltime")
    return bool(used and limit) and seconds(str(used)) >= seconds(str(limit))


def seconds(text: str) -> int:
    """Return `[[HH:]MM:]SS` in seconds; what is no duration has none."""
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text):
        return 0
    total = 0
    for part in text.partition(".")[0].split(":"):
        total = total * 60 + int(part)
    return total


def _hosts(places: str) -> tuple[str, ...]:
    """Return each host of `n1/0*2+n2/0` once."""
    names = (place.strip("()").partition("/")[0] for place in places.split("+"))
    return tuple(dict.fromkeys(filter(None, names)))


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _exit_code(status: int) -> int:
    """Return what a shell would see."""
    return 128 + status % SIGNALS if status >= SIGNALS else max(status, 0)
