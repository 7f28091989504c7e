"""How a command of the rules travels: each offer of it has a name of its own, and plain values."""

import re
from collections.abc import Mapping
from typing import Any, cast

from torchloom.messages import plane
from torchloom.rules.control.command import Abort, CommandEntry, CommandKind, Outcome, Status

ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
AT_ONCE = 0  # the step of an outcome that waits for none
_KINDS: dict[CommandKind, plane.Kind] = {
    CommandKind.KNOB: "knob",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.STOP: "stop",
    CommandKind.STOP_AT: "stop",
    CommandKind.RESIZE: "stop",  # its ranks end; others come
    CommandKind.CHECKPOINT: "checkpoint",
    CommandKind.DIGEST: "digest",
}
KINDS = frozenset(_KINDS)  # that can be offered to ranks


def prepare(head: plane.Head, entry: CommandEntry) -> plane.Prepare:
    """Return the question for a promise."""
    command = entry.command
    payload = knob_payload(command.payload) if command.kind is CommandKind.KNOB else command.payload
    kind = _KINDS[command.kind]
    return plane.Prepare(head, entry.offer_id, kind, dict(payload), command.at_step)


def planned(entry: CommandEntry) -> plane.Planned:
    """Return a decided change of knobs for ranks that come later."""
    payload, is_done = knob_payload(entry.command.payload), entry.status is Status.APPLIED
    return plane.Planned(entry.offer_id, entry.step or 0, payload, is_done)


def outcome_of(outcome: Outcome) -> tuple[int | None, str]:
    """Return the step of an outcome, and why there is none."""
    if isinstance(outcome, Abort):
        return None, outcome.why
    return (AT_ONCE if outcome.step is None else outcome.step), ""


def wrapped(values: Mapping[str, Any], hold: bool, undo: str = "") -> dict[str, Any]:
    """Return a change of knobs as the rules keep it: by name, so that a later one replaces it."""
    more = {"hold": hold, "undo": undo} if undo else {"hold": hold}
    return {name: {"value": value, **more} for name, value in values.items()}


def knob_payload(payload: Any) -> dict[str, plane.Value]:
    """Return a change of knobs as ranks take it."""
    values = {name: change["value"] for name, change in payload.items()}
    more: dict[str, Any] = {"hold": any(change["hold"] for change in payload.values())}
    if undo := next((change["undo"] for change in payload.values() if "undo" in change), ""):
        more["undo"] = undo
    if len(values) == 1:
        ((name, value),) = values.items()
        return {"name": name, "value": cast(plane.Value, value), **more}
    return {"values": values, **more}
