"""What changed values of optimizers are in a checkpoint: the rules that their steps follow.

A value scales what a schedule said in the step of its change. A life that begins at a later step
cannot find that out again, so the rules themselves are carried.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchloom.worker.threadlet.scaling import Rule

if TYPE_CHECKING:
    from torchloom.worker.threadlet.optimizers import Known

State = dict[str, Any]


def state_of(known: "Known") -> State:
    """Return what is asked of an optimizer as plain values."""
    rules = [[at, name, _told(rule)] for (at, name), rule in known.rules.items()]
    past = [
        [command, name, [[at, field, _told(old), _told(new)] for (at, field), old, new in turns]]
        for (command, name), turns in known.past.items()
    ]
    waiting = [[one.change.id, one.name] for one in known.armed]
    return {"rules": rules, "past": past, "waiting": waiting}


def put_back(known: "Known", state: Mapping[str, Any]) -> None:
    """Ask the same of an optimizer of a later life."""
    known.rules.update({(at, name): Rule(*told) for at, name, told in state["rules"]})
    for command, name, turns in state["past"]:
        known.past[command, name] = [
            ((at, field), _rule(old), _rule(new)) for at, field, old, new in turns
        ]


def _told(rule: Rule | None) -> list[Any] | None:
    return None if rule is None else [rule.target, rule.base]


def _rule(told: list[Any] | None) -> Rule | None:
    return None if told is None else Rule(*told)
