"""A change of knobs under way: what a command asked for, and what came of each part of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchloom.bus.messages import Value
from torchloom.errors import UserError

Report = Callable[[str, int, Value, Value], None]  # command, step, before, after


class BadValue(UserError):
    """A knob cannot have this value."""

    code = "bad_value"


@dataclass(frozen=True, slots=True)
class Wish:
    """The knobs a command names, with the values they are to have."""

    values: Mapping[str, Value]
    hold: bool = False  # pin the values instead of scaling what a schedule says
    undo: str = ""  # the command that is taken back

    @classmethod
    def of(cls, payload: Mapping[str, Value]) -> "Wish":
        """Read `{"name", "value", "hold"}`, or `{"values": {name: value}, "hold"}` for several."""
        values = payload.get("values")
        if not isinstance(values, dict):
            values = {str(payload.get("name", "")): payload.get("value")}
        if not values:
            raise BadValue("the command names no knob")
        return cls(dict(values), bool(payload.get("hold", False)), str(payload.get("undo") or ""))


@dataclass(slots=True, eq=False)
class Change:
    """A command whose parts may act one after the other; reported once, when all have."""

    command: str
    wish: Wish
    report: Report
    before: dict[str, Value] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the command's own name: each offer of it has another."""
        return self.command.rpartition("/")[0] or self.command

    def done(self, name: str, step: int, before: Value, after: Value) -> None:
        """Note that one knob has its new value, from this step on; it is noted once."""
        if name in self.after:
            return
        self.before[name], self.after[name] = before, after
        if self.after.keys() == self.wish.values.keys():
            self._tell(step)

    def _tell(self, step: int) -> None:
        if len(self.after) == 1:
            (before,), (after,) = self.before.values(), self.after.values()
            self.report(self.command, step, before, after)
        else:
            self.report(self.command, step, dict(self.before), dict(self.after))
