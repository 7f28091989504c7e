"""How a command of the rules travels: each offer of it has a name of its own, and plain values."""

import re
from typing import Any, cast

from torchloom.bus import messages
from torchloom.rules.command import Abort, Entry, Kind, Outcome

ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
AT_ONCE = 0  # the step of an outcome that waits for none
_KINDS: dict[Kind, messages.Kind] = {
    Kind.KNOB: "knob",
    Kind.PAUSE: "pause",
    Kind.RESUME: "resume",
    Kind.STOP: "stop",
    Kind.STOP_AT: "stop",
    Kind.CHECKPOINT: "checkpoint",
}
KINDS = frozenset(_KINDS)  # what ranks can be asked for


def wire_id(entry: Entry) -> str:
    """Return under which name ranks hear of this offer of a command."""
    return f"{entry.id}/{entry.offer}"


def offer_of(name: str) -> tuple[str, int] | None:
    """Return the command and the offer that a rank speaks of; nothing when it is none of ours."""
    command, slash, offer = name.rpartition("/")
    if not slash or not offer.isdecimal() or len(offer) > 9:
        return None
    return command, int(offer)


def prepare(head: messages.Head, entry: Entry) -> messages.Prepare:
    """Return the question for a promise."""
    command = entry.command
    payload = knob_payload(command.payload) if command.kind is Kind.KNOB else command.payload
    kind = _KINDS[command.kind]
    return messages.Prepare(head, wire_id(entry), kind, dict(payload), command.at_step)


def outcome_of(outcome: Outcome) -> tuple[int | None, str]:
    """Return the step of an outcome, and why there is none."""
    if isinstance(outcome, Abort):
        return None, outcome.why
    return (AT_ONCE if outcome.step is None else outcome.step), ""


def wrapped(values: dict[str, Any], hold: bool) -> dict[str, Any]:
    """Return a change of knobs as the rules keep it: by name, so that a later one replaces it."""
    return {name: {"value": value, "hold": hold} for name, value in values.items()}


def knob_payload(payload: Any) -> dict[str, messages.Value]:
    """Return a change of knobs as ranks take it."""
    values = {name: wish["value"] for name, wish in payload.items()}
    hold = any(wish["hold"] for wish in payload.values())
    if len(values) == 1:
        ((name, value),) = values.items()
        return {"name": name, "value": cast(messages.Value, value), "hold": hold}
    return {"values": values, "hold": hold}
