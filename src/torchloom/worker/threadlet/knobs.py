"""Values that may be changed while the job runs: their types, their ranges, who is told."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchloom.bus import messages
from torchloom.bus.messages import Value
from torchloom.errors import UserError, nearest

Type = Literal["float", "int", "bool", "str", "json"]
Handler = Callable[[Any], object]

_TYPES: Mapping[type, Type] = {float: "float", int: "int", bool: "bool", str: "str"}


class BadValue(UserError):
    """A knob cannot have this value."""

    code = "bad_value"


class UnknownKnob(UserError):
    """The program has no knob of this name."""

    code = "unknown_knob"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        there = f"there are {', '.join(known)}" if known else "there are none"
        hint = nearest(name, known) or there
        super().__init__(f"no knob {name!r}; {hint}")


@dataclass(slots=True)
class Knob:
    """One value of the program's own; handlers are called when it changes."""

    name: str
    type: Type
    value: Value = None
    low: float | None = None
    high: float | None = None
    handlers: list[Handler] = field(default_factory=list)

    def check(self, value: Value) -> Value:
        """Return the value as the knob takes it, or say why it does not."""
        return within(self.name, typed(self.name, self.type, value), self.low, self.high)

    def shown(self) -> messages.Knob:
        """Return the knob as the weaver is told of it."""
        return messages.Knob(self.name, self.value, self.type, self.low, self.high)


class Knobs:
    """The program's own knobs, by name."""

    def __init__(self) -> None:
        self._knobs: dict[str, Knob] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._knobs

    def names(self) -> tuple[str, ...]:
        return tuple(self._knobs)

    def shown(self) -> tuple[messages.Knob, ...]:
        return tuple(knob.shown() for knob in list(self._knobs.values()))

    def get(self, name: str) -> Knob:
        return self._knobs[name]

    def declare(
        self, name: str, value: Value, low: float | None = None, high: float | None = None
    ) -> Knob:
        """Add a knob, or give one that is there another value and range."""
        knob = Knob(name, type_of(value), value, low, high)
        knob.check(value)
        if (known := self._knobs.get(name)) is not None:
            knob.handlers = known.handlers
        self._knobs[name] = knob
        return knob

    def on(self, name: str, handler: Handler, kind: type | None) -> None:
        """Have a function called when the knob changes; one without a value is made for it."""
        if name not in self._knobs:
            self._knobs[name] = Knob(name, _TYPES.get(kind or object, "json"))
        self._knobs[name].handlers.append(handler)

    def change(self, name: str, value: Value) -> Value:
        """Set a value and call its handlers, in this thread; return what it was."""
        knob = self._knobs[name]
        value = knob.check(value)
        for handler in knob.handlers:
            handler(value)
        before, knob.value = knob.value, value
        return before


class Config(Mapping[str, Any]):
    """The values of the run's knobs as they are now, changed from outside only, and what else
    the run was given, which stays as it is."""

    def __init__(self, knobs: Knobs, given: Mapping[str, Any] | None = None) -> None:
        self._knobs = knobs
        self._given = given or {}

    def __getitem__(self, name: str) -> Any:
        return self._knobs.get(name).value if name in self._knobs else self._given[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(f"the run's config has no {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> dict[str, None]:
        return dict.fromkeys((*self._knobs.names(), *self._given))

    def __repr__(self) -> str:
        return f"Config({dict(self)!r})"


def type_of(value: Value) -> Type:
    """Return which type a knob with this first value has."""
    return _TYPES.get(type(value), "json")


def typed(name: str, kind: Type, value: Value) -> Value:
    """Return the value as this type, if it is one without loss."""
    match kind, value:
        case ("json", _) | ("bool", bool()) | ("str", str()):
            return value
        case "float", float() | int() if not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        case "int", float() | int() if not isinstance(value, bool) and value == value // 1:
            return int(value)
    raise BadValue(f"{name} takes {_ARTICLE[kind]}, not {value!r}")


def within(name: str, value: Value, low: float | None, high: float | None) -> Value:
    """Return the value if it is in the range."""
    if isinstance(value, int | float):
        if low is not None and value < low:
            raise BadValue(f"{name} must be at least {low:g}, not {value!r}")
        if high is not None and value > high:
            raise BadValue(f"{name} must be at most {high:g}, not {value!r}")
    return value


_ARTICLE: Mapping[Type, str] = {
    "float": "a finite number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
    "json": "any value",
}
