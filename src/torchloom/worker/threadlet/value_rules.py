"""The values of changed knobs of optimizers in each step, so that schedules keep their shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchloom.messages.plane import Value

if TYPE_CHECKING:
    from torchloom.worker.threadlet.optimizers import KnownOptimizer

SCALED = ("lr", "weight_decay")  # schedules change these; others are set directly


@dataclass(frozen=True, slots=True)
class ValueRule:
    """`target` in the step of the change, later scaled by the schedule.

    Without a base the target is held.
    """

    target: Any
    base: float | None = None

    def used(self, current: Any) -> Any:
        """Return the value for a step in which the program's own is `current`."""
        if self.base is None:
            return self.target
        return self.target * (float(current) / self.base)


@dataclass(frozen=True, slots=True)
class ReplacedValue:
    """A value of the program that is replaced during a step."""

    group: dict[str, Any]
    field: str
    value: Any

    @classmethod
    def replace(cls, group: dict[str, Any], field: str, rule: ValueRule) -> "ReplacedValue":
        """Set the value of the step; a tensor is changed in place, as compiled code needs it."""
        value = group[field]
        if not hasattr(value, "fill_"):
            group[field] = rule.used(value)
            return cls(group, field, value)
        kept = cls(group, field, value.clone())
        if rule.base is None:
            value.fill_(rule.target)
        else:
            value.div_(rule.base).mul_(rule.target)
        return kept

    def put_back(self) -> None:
        """Restore the program's own value."""
        value = self.group[self.field]
        if hasattr(value, "fill_"):
            value.copy_(self.value)
        else:
            self.group[self.field] = self.value


Rules = list[ValueRule | None]


def plan(
    field: str, groups: list[dict[str, Any]], rules: Rules, value: Any, hold: bool
) -> tuple[Rules, Value]:
    """Return the new rules of the groups, and the value that was used before.

    Groups of one optimizer keep their ratios: the first that is not 0 gets the value itself. If all
    are 0, the value is held.
    """
    if field not in SCALED:
        before = groups[0][field] if rules[0] is None else rules[0].target
        target = tuple(value) if isinstance(value, list) else value
        return [ValueRule(target) for _ in groups], plain(before)
    now = [float(group[field]) for group in groups]
    used = [rule.used(own) if rule else own for rule, own in zip(rules, now, strict=True)]
    first = next((number for number in used if number), 0.0)
    if not first:
        return [ValueRule(value) for _ in groups], 0.0
    new = [
        before if own == 0 else ValueRule(value * (number / first), None if hold else own)
        for before, own, number in zip(rules, now, used, strict=True)
    ]
    return new, first


def plain(value: Any) -> Value:
    """Return a value as numbers and lists of numbers."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return float(value) if hasattr(value, "fill_") else value


State = dict[str, Any]


def state_of(known: "KnownOptimizer") -> State:
    """Return the rules of an optimizer as plain values."""
    rules = [[at, name, _encoded(rule)] for (at, name), rule in known.rules.items()]
    past = [
        [
            command,
            name,
            [[at, field, _encoded(old), _encoded(new)] for (at, field), old, new in turns],
        ]
        for (command, name), turns in known.past.items()
    ]
    waiting = [[one.change.id, one.name] for one in known.armed]
    return {"rules": rules, "past": past, "waiting": waiting}


def put_back(known: "KnownOptimizer", state: Mapping[str, Any]) -> None:
    """Restore the rules of an optimizer in a later process."""
    known.rules.update({(at, name): ValueRule(*values) for at, name, values in state["rules"]})
    for command, name, turns in state["past"]:
        known.past[command, name] = [
            ((at, field), _rule(old), _rule(new)) for at, field, old, new in turns
        ]


def _encoded(rule: ValueRule | None) -> list[Any] | None:
    return None if rule is None else [rule.target, rule.base]


def _rule(values: list[Any] | None) -> ValueRule | None:
    return None if values is None else ValueRule(*values)
