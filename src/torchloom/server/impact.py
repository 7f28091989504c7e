"""The impact preview of a command: what it would do to a job now, or why it would be refused.

The checks are the weaver's own. What only the ranks know, such as that they are too many steps
apart, shows when the command is sent. Nothing is changed.
"""

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom.errors import NotFound, UserError
from torchloom.launch.records.resumption import Continuation
from torchloom.rules.control.command import BadKnobValue, CommandEntry
from torchloom.rules.control.undo import NoUndo, condition_of, undo
from torchloom.specs.states import JobState
from torchloom.weaver.api.refusals import JobOver, JobReleased, NothingToUndo, check_ranks
from torchloom.weaver.api.resumption import EndedMeanwhile
from torchloom.weaver.commands.rows import checked
from torchloom.weaver.health.responses import FAILED, REPLACED, RESTARTED, SHRUNK, STAYS
from torchloom.weaver.jobs.registry import WORLD_SIZE, has_run, is_over, is_released
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_VERBS = {"failed": "fail", "draining": "drain", "healthy": "recover"}
_THEN = {
    REPLACED: "and replaced while the others wait",
    RESTARTED: "and the job restarts from its newest checkpoint",
    SHRUNK: "and the job continues without {them}",
    FAILED: "and the job fails",
}
_ALONE = {
    "failed": "No rank uses {it}, so none is ended.",
    "draining": "No rank uses {it}, so nothing ends.",
    "healthy": "No rank uses {it}.",
}
_QUEUE = {
    "failed": "The queue gives {it} to no job.",
    "draining": "The queue gives {it} to no further job.",
    "healthy": "The queue may give {it} to jobs again.",
}
_SLOTS = "CPU slots are only counted: the queue and replaced ranks still use them."
_AHEAD = 0.01  # seconds that ranks look ahead for a step that none has begun
_WORDS: Mapping[str, str] = {
    "pause": "all ranks wait",
    "stop": "all ranks end, everything is kept",
    "checkpoint": "all ranks save",
    "resize": "all ranks save and end, the new ranks continue at that step",
    "resume": "the job resumes",
    "cancel": "the job is ended at once",
}
_RESUMABLE = "only a paused or an ended job is resumed"


Devices = Sequence[Mapping[str, Any]]


def device_outlook(
    state: str, devices: Devices, jobs: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what would happen, the warnings, and the devices that would change."""
    changed = [one for one in devices if one["state"] != state]
    return {
        "state": state,
        "devices": [one["uuid"] for one in changed],
        "summary": _lines(state, changed, jobs) if changed else [_already(state, devices)],
        "warnings": [_SLOTS] if state != "healthy" and _slots(changed) else [],
    }


def device_command_line(state: str, devices: Devices, reason: str) -> str:
    """Return the `loom` commands that report the same, in one line."""
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
        return f"{_ranks(ranks)} of {name} {_so(ranks, 'keeps', 'keep')} running there."
    if job["then"] == STAYS:
        until = _so(ranks, "keeps running until it ends", "keep running until they end")
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


class CommandNotNow(UserError):
    """The command does not fit the state of the job."""

    code = "not_resumable"


@dataclass(frozen=True, slots=True)
class Scene:
    """A job as it is now, as far as commands are concerned."""

    job: JobRow
    ranks: Sequence[RankProcessRow]  # that are up
    knobs: Mapping[str, Any]  # the values in force
    commands: Sequence[CommandEntry]
    metrics: Sequence[str]
    step: int | None
    step_seconds: float | None
    newest: int | None = None  # the step of its newest committed checkpoint


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a command would do."""

    changes: tuple[dict[str, Any], ...] = ()
    effective_step: int | None = None
    warnings: tuple[str, ...] = ()


def outlook(scene: Scene, asked: Mapping[str, Any]) -> Outlook:
    """Return what a command would do; a command that would be refused raises the weaver's error."""
    verb = asked["verb"]
    _check_state(scene.job, verb)
    if verb == "resume" and (is_over(scene.job) or is_released(scene.job)):
        _check_resume(scene, asked)
    changes: tuple[dict[str, Any], ...] = ()
    if verb == "set":
        values = checked(scene.job, list(scene.ranks), dict(asked.get("values") or {}))
        _check_guard(scene, asked.get("guard"))
        changes = _changes(scene, values)
    elif verb == "resize":
        now = len(scene.ranks) or scene.job.facts.get(WORLD_SIZE)
        check_ranks(scene.job, now, asked["workers"])
        changes = ({"name": "ranks", "before": now, "after": asked["workers"]},)
    elif verb == "undo":
        changes = _changes(scene, _undone(scene, asked.get("command") or ""))
    if verb in ("resume", "cancel"):
        return Outlook(changes)
    return Outlook(changes, _step(scene, asked.get("at")), tuple(_warnings(scene, asked)))


def summary(scene: Scene, verb: str, found: Outlook) -> str:
    """Return an outlook in one line."""
    parts = [
        f"{one['name']} {_shown(one['before'])} -> {_shown(one['after'])}" for one in found.changes
    ]
    words = ", ".join(parts) or _WORDS[verb]
    if verb in ("resume", "cancel"):
        return words
    count = len(scene.ranks)
    where = f"on {count} rank{'s' if count != 1 else ''}"
    step = found.effective_step
    return f"{words}, {where}" + ("" if step is None else f", at about step {step}")


def command_line(job: str, asked: Mapping[str, Any]) -> str:
    """Return the `loom` command that does the same."""
    verb = asked["verb"]
    words = ["loom", "set" if verb == "undo" else "stop" if verb == "cancel" else verb, job]
    words += [f"{name}={_text(value)}" for name, value in (asked.get("values") or {}).items()]
    flags = {"hold": "--hold", "release": "--release", "from_scratch": "--from-scratch"}
    words += [flag for name, flag in flags.items() if asked.get(name)]
    words += ["--now"] if verb == "cancel" else []
    if verb == "undo":
        words += ["--undo", *([asked["command"]] if asked.get("command") else [])]
    if verb == "resize":
        words.append(str(asked["workers"]))
    options = {"at": "--at", "guard": "--guard", "span": "--for"}
    options |= {"workers": "-n"} if verb == "resume" else {}
    options |= {"from_step": "--from", "until": "--until", "reason": "--reason"}
    for name, option in options.items():
        if asked.get(name) not in (None, ""):
            words += [option, str(asked[name])]
    return shlex.join(words)


def _check_state(job: JobRow, verb: str) -> None:
    if verb == "resume":
        if not (is_over(job) or job.state == JobState.PAUSED):
            raise CommandNotNow(f"{job.id} is {job.state}: nothing to resume; {_RESUMABLE}")
    elif is_over(job):
        raise JobOver(job)
    elif is_released(job) and verb != "cancel":
        raise JobReleased(job)


def _check_resume(scene: Scene, asked: Mapping[str, Any]) -> None:
    """Refuse a new attempt as the weaver does, by the stored checkpoints."""
    job = scene.job
    if asked.get("unpause") and is_over(job):
        raise EndedMeanwhile(job)
    ranks, step, until = (asked.get(name) for name in ("workers", "from_step", "until"))
    wanted = Continuation(ranks, step, until, bool(asked.get("from_scratch")))
    if has_run(job):
        wanted.check(job.id, job.state == JobState.COMPLETED, scene.newest)


def _check_guard(scene: Scene, words: str | None) -> None:
    condition = condition_of(words) if words else None
    if words and condition is None:
        raise BadKnobValue(f"{words!r} is not a guard condition; write 'loss>2.0' or 'loss is nan'")
    if condition is not None and condition.metric not in scene.metrics:
        there = ", ".join(scene.metrics) or "nothing"
        raise NotFound("metric", condition.metric, scene.metrics, f"the job has logged {there}")


def _undone(scene: Scene, command: str) -> Mapping[str, Any]:
    found = undo(scene.commands, command)
    if isinstance(found, NoUndo):
        raise NothingToUndo(f"nothing to undo in job {scene.job.id}: {found.why}")
    return found.values


def _changes(scene: Scene, values: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": name, "before": scene.knobs.get(name), "after": value}
        for name, value in values.items()
    )


def _step(scene: Scene, at: int | None) -> int | None:
    """Return about when it would act: the first step that no rank will have begun."""
    if scene.step is None:
        return at
    took = scene.step_seconds
    ahead = math.ceil(_AHEAD / took) if took else 1
    return max(scene.step + 1 + ahead, at or 0)


def _warnings(scene: Scene, asked: Mapping[str, Any]) -> list[str]:
    found = []
    waiting = [rank.rank for rank in scene.ranks if rank.boundary == "none"]
    if waiting or not scene.ranks:
        found.append("it waits until every rank has reached its first step")
    at, first = asked.get("at"), _step(scene, None)
    if at is not None and first is not None and at < first:
        found.append(f"step {at} is past; it acts at the next step that all ranks can")
    if scene.job.state == JobState.PAUSED and asked["verb"] != "stop":
        found.append("the job is paused; it takes effect when the job resumes")
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else _text(value)
