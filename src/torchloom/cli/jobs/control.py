"""Shared by the verbs that change a running job: parse values, send commands, print outcomes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from torchloom.cli.output import agree, echo, echo_json, is_attended, printable, say
from torchloom.errors import UserError

WAIT = "How long to wait for the outcome; default 30."
ACTIVE = ("QUEUED", "RUNNING", "RECOVERING", "PAUSED")  # states of jobs that can be stopped
_NAMED = 5  # jobs that a question names one by one
_NOTHING = object()


def split(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the job and the values of NAME=VALUE words; both may be missing."""
    jobs = [word for word in words if "=" not in word]
    if len(jobs) > 1:
        raise UserError(f"{jobs[1]!r} is not NAME=VALUE; write lr=0.03")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            continue
        if not name or not text:
            raise UserError(f"{word!r} is not NAME=VALUE; write lr=0.03")
        if values.get(name, _NOTHING) is not _NOTHING:
            raise UserError(f"{name} is given twice")
        values[name] = value_of(text)
    return (jobs[0] if jobs else ""), values


def value_of(text: str) -> Any:
    """Parse a value as JSON, else return the text: 1e-4, true, [0.9, 0.99], cosine."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # numbers that are not JSON: .03, 1., +3
    except ValueError:
        return text


def states_of_all(
    every: bool, jobs: Sequence[str], at: int | None, words: Sequence[str]
) -> list[str]:
    """Return the states whose jobs `stop --all` stops: those given, or all active ones."""
    if not every:
        raise UserError("--state needs --all")
    if jobs or at is not None:
        raise UserError("--all cannot be combined with JOBS or --at")
    states = [word.upper() for word in words]
    for state in states:
        if state not in ACTIVE:
            raise UserError(f"a {state} job cannot be stopped; choose from {', '.join(ACTIVE)}")
    return states or list(ACTIVE)


def agree_to_stop(jobs: Sequence[str], yes: bool) -> None:
    """Ask for confirmation to stop jobs that were not named; without a terminal, require -y."""
    if yes or not jobs:
        return
    many = f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}"
    if not is_attended():
        raise UserError(f"this stops {many}; without a terminal, confirm with --yes")
    agree(f"stop {', '.join(jobs) if len(jobs) <= _NAMED else many}?", "nothing was stopped")


def show_stopped(outcomes: Iterable[Mapping[str, Any]], as_json: bool) -> int:
    """Print the outcomes of a stop; return exit code 1 if one failed.

    With JSON only errors are printed here.
    """
    code = 0
    for one in outcomes:
        if "error" not in one:
            echo(f"{one['job']} {one['ok']['state']}") if not as_json else None
        elif one["code"] != "job_over":
            say(str(one["error"]))
            code = 1
    return code


def ask(name: str, **facts: Any) -> Any:
    """Send a request to the plane in use and wait for the reply; facts that are None are left out.

    A plane that a run has just started may not be up yet: it is waited for.
    """
    from torchloom.client import plane
    from torchloom.client.errors import NoPlane

    given = {fact: value for fact, value in facts.items() if value is not None}
    try:
        return settle(name, **given)
    except NoPlane:
        if not _has_active_run():
            raise
    plane.find_or_start()
    return settle(name, **given)


def settle(name: str, **facts: Any) -> Any:
    """Send a change to the plane in use; it is applied once, even if the plane restarts."""
    from torchloom.cli.command import WaitNotice
    from torchloom.client import chosen

    job = facts.get("job") or "JOB"
    waiting = WaitNotice(f"`loom inspect {job} audit` shows whether it was accepted")
    return chosen.settle(name, waiting, **facts)


def _has_active_run() -> bool:
    from torchloom.launch.records import catalog
    from torchloom.settings import wants_plane

    return wants_plane() and any(not record.is_over() for record in catalog.records())


def show_outcome(outcome: dict[str, Any], as_json: bool) -> None:
    """Print the outcome of a command."""
    if as_json:
        echo_json(outcome)
        return
    for line in in_words(outcome):
        echo(printable(line))


def checkpoint_in_words(made: dict[str, Any]) -> str:
    """Return a line about a checkpoint that was just saved."""
    what = f"checkpoint of step {made['step']}"
    if made["state"] != "committed":
        return f"{what} is {made['state']}; `loom checkpoint ls` shows when it is committed"
    took = made.get("seconds")
    lasted = (
        "" if took is None else f" in {took * 1000:.0f} ms" if took < 1 else f" in {took:.1f} s"
    )
    return f"{what} committed{lasted}: {made['path'] or made['place']}"


def in_words(outcome: dict[str, Any]) -> list[str]:
    """Return the outcome as lines of text: change, step and ranks."""
    where = _where(outcome)
    if outcome["state"] not in ("applied", "committed"):
        return [f"{outcome['kind']} {outcome['id']} is {outcome['state'].replace('_', ' ')}{where}"]
    if outcome["kind"] != "knob":
        words = _DONE if outcome["state"] == "applied" else _WILL
        return [f"{words.get(outcome['kind'], outcome['kind'])}{where}"]
    payload = outcome["payload"]
    values = payload.get("values") or {payload["name"]: payload["value"]}
    more = _manner(payload) + (": accepted, not read yet" * (outcome["state"] == "committed"))
    lines = [
        f"{name} {_change(outcome, name, value, len(values))}{where}{more}"
        for name, value in values.items()
    ]
    return lines + _guarded(outcome.get("guard"))


def _manner(payload: dict[str, Any]) -> str:
    held = ", held" if payload.get("hold") else ""
    return held + (f", undoes {payload['undo']}" if payload.get("undo") else "")


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks in short form: 0-3,7."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def shown(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


_DONE = {
    "pause": "paused",
    "resume": "resumed",
    "checkpoint": "saved",
    "digest": "step digest log switched",
    "stop": "stopped",
    "stop_at": "stopped",
    "resize": "resized; saved",
}
_WILL = {"pause": "will pause", "stop": "will stop", "stop_at": "will stop"}
_FOUND = {"kept": "kept", "reverted": "reverted", "tripped": "to be reverted"}


def _change(outcome: dict[str, Any], name: str, value: Any, of: int) -> str:
    before, after = (
        found.get(name) if isinstance(found, dict) and of > 1 else found if of == 1 else None
        for found in (outcome["before"], outcome["after"])
    )
    missed = ""
    if after is not None and not _is_same(after, value) and not outcome["payload"].get("undo"):
        missed = f" (requested {shown(value)}: the program set another value)"
    after = value if after is None else after
    words = f"{shown(after)}" if before is None else f"{shown(before)} -> {shown(after)}"
    return words + missed


def _is_same(after: Any, value: Any) -> bool:
    if isinstance(after, int | float) and isinstance(value, int | float):
        return math.isclose(after, value, rel_tol=1e-6, abs_tol=1e-12)
    return after == value or isinstance(value, list)


def _guarded(guard: dict[str, Any] | None) -> list[str]:
    """Return a line about the guard of a change, if it has one."""
    if guard is None:
        return []
    words = f"guard {guard['condition']} over {guard['steps']} steps"
    if guard["state"] == "watching":
        return [words]
    found = _FOUND.get(guard["state"], "without effect")
    return [f"{words}: {found}, {guard['reason']}"]


def _where(outcome: dict[str, Any]) -> str:
    ranks = outcome["ranks"]
    step = outcome["effective_step"]
    words = f" at step {step}" if step else ""
    if ranks:
        many = "rank" if len(ranks) == 1 else "ranks"
        words += f" on {many} {numbers(ack['rank'] for ack in ranks)}"
    if outcome["state"] == "applied" and (took := _took(outcome)) is not None:
        words += f", acked in {took}"
    return words


def _took(outcome: dict[str, Any]) -> str | None:
    if not outcome["ended_at"]:
        return None
    ended, asked = (datetime.fromisoformat(outcome[at]) for at in ("ended_at", "asked_at"))
    seconds = (ended - asked).total_seconds()
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
