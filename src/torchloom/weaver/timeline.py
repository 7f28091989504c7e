"""The values a run began with and every change of them, as one list; pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchloom.weaver.shapes import when
from torchloom.weaver.store.rows import Command, Rank

_DONE = ("applied", "committed")


def config_of(
    ranks: Iterable[Rank], commands: Iterable[Command], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run's values were before its first step.

    A rank says its knobs again when it has a new one, so a value that was changed is taken from
    what the first change replaced.
    """
    config = dict(given)
    for rank in sorted(ranks, key=lambda rank: rank.rank, reverse=True):
        config.update((knob["name"], knob["value"]) for knob in rank.knobs)
    for command in reversed(changes_of(commands)):
        config.update(before_of(command))
    return dict(sorted(config.items()))


def timeline_of(
    config: Mapping[str, Any], commands: Iterable[Command], began: float | None
) -> list[dict[str, Any]]:
    """Return the config at its beginning, then each change of a knob at its step."""
    first = [_entry(0, began, config)] if config else []
    return first + [
        _entry(one.effective, one.ended_at or one.asked_at, after_of(one), one)
        for one in changes_of(commands)
    ]


def changes_of(commands: Iterable[Command]) -> list[Command]:
    """Return the changes of knobs that took place, in the order of their steps."""
    done = [one for one in commands if one.kind == "knob" and one.state in _DONE]
    return sorted(done, key=lambda one: (one.effective or 0, one.number))


def before_of(command: Command) -> dict[str, Any]:
    """Return the values that a change replaced, as far as a rank has told them."""
    return {name: value for name, value in _said(command, command.before) if value is not None}


def after_of(command: Command) -> dict[str, Any]:
    """Return the values that a change brought; what no rank has told, as they were asked for."""
    wished = {name: wish["value"] for name, wish in command.payload.items()}
    told = {name: value for name, value in _said(command, command.after) if value is not None}
    return {**wished, **told}


def _said(command: Command, said: Any) -> list[tuple[str, Any]]:
    """Return values by name; of one knob alone a rank tells the bare value."""
    names = list(command.payload)
    if len(names) == 1:
        return [(names[0], said)]
    return [(name, said.get(name)) for name in names] if isinstance(said, dict) else []


def _entry(
    step: int | None, time: float | None, values: Mapping[str, Any], command: Command | None = None
) -> dict[str, Any]:
    return {
        "step": step,
        "time": when(time),
        "values": dict(values),
        "author": command.author if command else "",
        "reason": command.reason if command else "",
        "command": command.id if command else None,
    }
