"""Knobs: values that may change while the job runs, and what they are in each optimizer step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchloom.errors import UserError, nearest
from torchloom.messages import plane
from torchloom.messages.plane import Value
from torchloom.rules.control.command import BadKnobValue

if TYPE_CHECKING:
    from torchloom.worker.threadlet.optimizers import KnownOptimizer

_LONGEST = 200  # characters of a value that is not plain


Report = Callable[[str, int, Value, Value], None]  # command, step, before, after


@dataclass(frozen=True, slots=True)
class KnobRequest:
    """The knobs that a command names, with their new values."""

    values: Mapping[str, Value]
    hold: bool = False  # pin the values instead of scaling a schedule
    undo: str = ""  # the command to undo
    # What was used before the change, if it took effect at an earlier step than this one.
    then: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: Mapping[str, Value], is_late: bool = False) -> "KnobRequest":
        """Read `{"name", "value", "hold"}`, or `{"values": {name: value}, "hold"}` for several.

        A change that is done again late is read with the values `before` it, by name.
        """
        values, then = payload.get("values"), payload.get("before") if is_late else None
        if not isinstance(values, dict):
            values = {str(payload.get("name", "")): payload.get("value")}
        if not values:
            raise BadKnobValue("the command names no knob")
        hold, undo = bool(payload.get("hold", False)), str(payload.get("undo") or "")
        return cls(dict(values), hold, undo, then if isinstance(then, dict) else {})


@dataclass(slots=True, eq=False)
class KnobChange:
    """A change of several knobs, which may take effect at different times; reported once."""

    command: str
    request: KnobRequest
    report: Report
    before: dict[str, Value] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the command, without the suffix of a repeated offer."""
        return self.command.rpartition("/")[0] or self.command

    def done(self, name: str, step: int, before: Value, after: Value) -> None:
        """Record that one knob has its new value from this step on; later calls are ignored."""
        if name in self.after:
            return
        self.before[name], self.after[name] = before, after
        if self.after.keys() == self.request.values.keys():
            self._send_report(step)

    def _send_report(self, step: int) -> None:
        if len(self.after) == 1:
            (before,), (after,) = self.before.values(), self.after.values()
            self.report(self.command, step, before, after)
        else:
            self.report(self.command, step, dict(self.before), dict(self.after))


Type = Literal["float", "int", "bool", "str", "json"]
Source = Literal["program", "spec", "config"]  # run.knob, the job, torchloom.init
Handler = Callable[[Any], object]

_TYPES: Mapping[type, Type] = {float: "float", int: "int", bool: "bool", str: "str"}


class UnknownKnob(UserError):
    """The program has no knob of this name."""

    code = "unknown_knob"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        there = f"known: {', '.join(known)}" if known else "it has none"
        hint = nearest(name, known) or there
        super().__init__(f"no knob {name!r}; {hint}")


@dataclass(slots=True)
class ProgramKnob:
    """One value of the program.

    The program registers it, the job's spec names it, or it is a value of the config, which is a
    knob once a step has read it. A change is in use when its handlers were called, or when a step
    has read it; until then `unread` has the change and the value before it.
    """

    name: str
    type: Type
    value: Any = None
    low: float | None = None
    high: float | None = None
    source: Source = "program"
    handlers: list[Handler] = field(default_factory=list)
    is_read: bool = False  # by a step
    unread: tuple[KnobChange, Value] | None = None

    @property
    def is_offered(self) -> bool:
        """Tell whether a change can have an effect."""
        return self.is_own or self.source == "spec" or (self.is_read and is_plain(self.value))

    @property
    def is_own(self) -> bool:
        """Tell whether the program registered it; it then hides an optimizer's knob."""
        return self.source == "program" or bool(self.handlers)

    def check(self, value: Value) -> Value:
        """Return the value converted to the knob's type; raise BadKnobValue if it does not fit."""
        return within(self.name, typed(self.name, self.type, value), self.low, self.high)

    def shown(self) -> plane.Knob:
        """Return the knob as a message; a value that cannot be sent becomes text."""
        value: Value = self.value if is_plain(self.value) else repr(self.value)[:_LONGEST]
        return plane.Knob(self.name, value, self.type, self.low, self.high, self.is_offered)


class ProgramKnobs:
    """The knobs of the program and the values of its config, by name."""

    def __init__(self) -> None:
        self._knobs: dict[str, ProgramKnob] = {}

    def __contains__(self, name: str) -> bool:
        """Tell whether this name is a knob, and not only a value of the config."""
        return name in self._knobs and self._knobs[name].is_offered

    def names(self) -> tuple[str, ...]:
        """Return the names of all knobs and values of the config."""
        return tuple(self._knobs)

    def offered(self) -> tuple[str, ...]:
        """Return the names of the knobs that can be changed."""
        return tuple(name for name in list(self._knobs) if name in self)

    def shown(self) -> tuple[plane.Knob, ...]:
        return tuple(knob.shown() for knob in list(self._knobs.values()))

    def read_names(self) -> list[str]:
        """Return the names of values that a step has read."""
        return [name for name, knob in list(self._knobs.items()) if knob.is_read]

    def mark_read(self, names: Iterable[str]) -> None:
        """Mark the values that a peer's steps have read."""
        for name in names:
            if (knob := self._knobs.get(name)) is not None:
                knob.is_read = True

    def get(self, name: str) -> ProgramKnob | None:
        """Return the knob or the value of the config with this name."""
        return self._knobs.get(name)

    def declare(
        self,
        name: str,
        value: Value,
        low: float | None = None,
        high: float | None = None,
        source: Source = "program",
    ) -> ProgramKnob:
        """Add a knob, or change the value and range of an existing one."""
        knob = ProgramKnob(name, type_of(value), value, low, high, source)
        knob.check(value)
        if (known := self._knobs.get(name)) is not None:
            knob.handlers, knob.is_read = known.handlers, known.is_read
        self._knobs[name] = knob
        return knob

    def configure(self, name: str, value: Any) -> None:
        """Add a value of the config, unless a knob is registered under this name."""
        known = self._knobs.get(name)
        if known is None or known.source == "config":
            knob = ProgramKnob(name, type_of(value), value, source="config")
            if known is not None:
                knob.handlers, knob.is_read = known.handlers, known.is_read
            self._knobs[name] = knob

    def on(self, name: str, handler: Handler, kind: type | None) -> None:
        """Call a function when the knob changes; an unknown knob is created without a value."""
        if name not in self._knobs:
            self._knobs[name] = ProgramKnob(name, _TYPES.get(kind or object, "json"))
        self._knobs[name].handlers.append(handler)

    def change(self, name: str, value: Value) -> Value:
        """Set a value and call its handlers, in this thread; return the value before."""
        knob = self._knobs[name]
        value = knob.check(value)
        for handler in knob.handlers:
            handler(value)
        before: Value = knob.value if is_plain(knob.value) else None
        knob.value = value
        return before


class Config(Mapping[str, Any]):
    """The current values of the run's config and knobs: a read-only mapping.

    `inside` returns whether a step is running. The first read of a value, or of a change, inside a
    step is passed to `read`.
    """

    def __init__(
        self, knobs: ProgramKnobs, inside: Callable[[], bool], read: Callable[[ProgramKnob], None]
    ) -> None:
        self._knobs = knobs
        self._inside = inside
        self._read = read

    def __getitem__(self, name: str) -> Any:
        if (knob := self._knobs.get(name)) is None:
            raise KeyError(name)
        if (knob.unread is not None or not knob.is_read) and self._inside():
            self._read(knob)
        return knob.value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._knobs.get(name) is None:
            raise AttributeError(f"the run's config has no {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs.names())

    def __len__(self) -> int:
        return len(self._knobs.names())

    def __repr__(self) -> str:
        shown = {name: knob.value for name in self if (knob := self._knobs.get(name))}
        return f"Config({shown!r})"


def is_plain(value: Any) -> bool:
    """Tell whether a value can be sent: numbers, text, and lists and dictionaries of them."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or type(value) in (float, bool, str)


def type_of(value: Any) -> Type:
    """Return the type of a knob with this initial value."""
    return _TYPES.get(type(value), "json")


def typed(name: str, kind: Type, value: Value) -> Value:
    """Return the value as this type; raise BadKnobValue if that loses information."""
    match kind, value:
        case ("json", _) | ("bool", bool()) | ("str", str()):
            return value
        case "float", float() | int() if not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        case "int", float() | int() if not isinstance(value, bool) and value == value // 1:
            return int(value)
    raise BadKnobValue(f"{name} takes {_ARTICLE[kind]}, not {value!r}")


def within(name: str, value: Value, low: float | None, high: float | None) -> Value:
    """Return the value; raise BadKnobValue if it is outside of the range."""
    if isinstance(value, int | float):
        if low is not None and value < low:
            raise BadKnobValue(f"{name} must be at least {low:g}, not {value!r}")
        if high is not None and value > high:
            raise BadKnobValue(f"{name} must be at most {high:g}, not {value!r}")
    return value


_ARTICLE: Mapping[Type, str] = {
    "float": "a finite number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a string",
    "json": "any value",
}


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
    field: str,
    groups: list[dict[str, Any]],
    rules: Rules,
    value: Any,
    hold: bool,
    then: Value = None,
) -> tuple[Rules, Value]:
    """Return the new rules of the groups, and the value that was used before.

    Groups of one optimizer keep their ratios: the first that is not 0 gets the value itself. If all
    are 0, the value is held. For a change of an earlier step, `then` is the value that was used
    before it, by which the schedule of that step is known.
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
        before
        if own == 0
        else ValueRule(
            value * (number / first), None if hold else _base(own, number / first, before, then)
        )
        for before, own, number in zip(rules, now, used, strict=True)
    ]
    return new, first


def _base(own: float, ratio: float, before: ValueRule | None, then: Value) -> float:
    """Return the program's value in the step of a change: `own`, or what follows from `then`."""
    if not isinstance(then, int | float) or then <= 0:
        return own
    if before is None:
        return then * ratio
    return (
        own
        if before.base is None or not before.target
        else then * ratio * (before.base / before.target)
    )


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
