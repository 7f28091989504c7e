"""Torch optimizers: the step boundary of attached programs, and knobs that act inside a step.

A changed value is in the optimizer only while its `step` runs, between torch's pre and post hooks.
Outside of it, every scheduler, checkpoint and print sees the program's own value. A change is
reported after the step, with the value that was in the optimizer: hooks of the program may have
replaced it.
"""

import math
import re
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from torchloom.messages import plane
from torchloom.messages.plane import Value
from torchloom.rules.control.command import BadKnobValue
from torchloom.worker.threadlet import knobs
from torchloom.worker.threadlet.boundary import StepBoundary
from torchloom.worker.threadlet.knobs import (
    KnobChange,
    ReplacedValue,
    ValueRule,
    plain,
    plan,
    typed,
    within,
)

MOST = 8  # optimizers whose steps can be aligned by a count

_FIELDS = ("lr", "weight_decay", "momentum", "betas")
_HIGHEST = {"momentum": 1.0}
_REMEMBERED = 256  # changes that can be undone to the exact rule before
_NAME = re.compile(rf"(?:opt([1-9]\d?)\.)?({'|'.join(_FIELDS)})(?:\[(\d+)\])?")

Key = tuple[int, str]  # group and field
Turn = tuple[Key, ValueRule | None, ValueRule | None]  # the rule before and the rule after


@dataclass(frozen=True, slots=True, eq=False)
class ArmedChange:
    """A change for the next step of an optimizer.

    If the config has a value of this name, `ratio` is the factor by which that changed.
    """

    change: KnobChange
    name: str
    ratio: float | None = None
    was: float = 0.0  # the program's own value then


@dataclass(frozen=True, slots=True, eq=False)
class TakenChange:
    """A change that the current step applies: its groups, and the value before it."""

    armed: ArmedChange
    keys: list[Key]
    before: Value
    is_own: bool  # the program has set the value itself

    @property
    def value(self) -> Value:
        return self.armed.change.request.values[self.armed.name]


@dataclass(slots=True, eq=False)
class KnownOptimizer:
    """An optimizer that has taken a step, its rules, and the values that its steps used."""

    number: int
    optimizer: "weakref.ref[Any]"
    rules: dict[tuple[int, str], ValueRule] = field(default_factory=dict)
    armed: list[ArmedChange] = field(default_factory=list)
    taken: list[TakenChange] = field(default_factory=list)
    unsure: list[TakenChange] = field(
        default_factory=list
    )  # the next step shows whether the program applies them
    used: dict[tuple[int, str], Value] = field(default_factory=dict)
    past: OrderedDict[tuple[str, str], list[Turn]] = field(default_factory=OrderedDict)

    def groups(self) -> list[dict[str, Any]]:
        optimizer = self.optimizer()
        return list(optimizer.param_groups) if optimizer is not None else []

    def turn(self, command: str, name: str, turns: list[Turn]) -> None:
        """Replace rules, and keep the old ones for an undo."""
        self.past[command, name] = turns
        while len(self.past) > _REMEMBERED:
            self.past.popitem(last=False)
        for key, _, rule in turns:
            if rule is not None:
                self.rules[key] = rule
            elif self.rules.pop(key, None) is not None:
                self.used.pop(key, None)

    def covered(self, name: str) -> list[Key]:
        """Return the groups and the field that a knob of this optimizer changes."""
        at, what = next((at, what) for own, at, what in self.names() if own == name)
        return [
            (index, what)
            for index, group in enumerate(self.groups())
            if at in (-1, index) and is_number(group.get(what), what)
        ]

    def before(self, command: str, name: str) -> list[ValueRule | None] | None:
        """Return the rules before a change; None if it is no longer in force."""
        turns = self.past.get((command, name), [])
        if not turns or any(self.rules.get(key) != new for key, _, new in turns):
            return None
        return [old for _, old, _ in turns]

    def names(self) -> Iterator[tuple[str, int, str]]:
        """Yield each knob with its group and field; group -1 means all."""
        prefix = "" if self.number == 1 else f"opt{self.number}."
        groups = self.groups()
        for name in _FIELDS:
            having = [at for at, group in enumerate(groups) if is_number(group.get(name), name)]
            if having:
                yield prefix + name, -1, name
            for at in having if len(groups) > 1 else ():
                yield f"{prefix}{name}[{at}]", at, name


class Optimizers:
    """Observes every optimizer's step on the main thread."""

    def __init__(
        self,
        boundary: StepBoundary,
        attend: Callable[[], None],
        learned: Callable[[int], None],
        event: Callable[[str, dict[str, Value]], None],
    ) -> None:
        self.counts = True  # whether a return is a boundary: not with run.steps
        self._boundary = boundary
        self._attend = attend
        self._learned = learned
        self._event = event
        self._main: int | None = threading.main_thread().ident
        self._inside = False
        self._depth = 0
        self._asked = False  # whether a rule or a stop is to be applied
        self._stopping = False
        self._kept: list[ReplacedValue] = []  # the program's values during a step
        self._elsewhere = False
        self._known: dict[int, KnownOptimizer] = {}
        self._numbers = 0
        self._carried: dict[int, Mapping[str, Any]] = {}  # rules of an earlier process, by number
        self._is_installed = False
        self._broken: Callable[[BaseException], None] = lambda error: None

    # Hooks.

    def install(self, module: Any, broken: Callable[[BaseException], None]) -> None:
        """Install the hooks in torch.optim.optimizer; exceptions in them are passed to `broken`."""
        if not self._is_installed:
            self._is_installed = True
            self._broken = broken
            module.register_optimizer_step_pre_hook(self.before)
            module.register_optimizer_step_post_hook(self.after)

    def remove(self) -> None:
        """Disable the hooks for good, and restore the program's own values.

        They stay registered: torch may be going through its hooks now.
        """
        self._main = None
        self._put_back()

    def stop(self) -> None:
        """End the program at the beginning of its next step."""
        self._stopping = self._asked = True

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Pre hook of an optimizer's step: set the values that it uses."""
        if get_ident() != self._main:
            self._elsewhere = True
            return
        try:
            if self._inside and self._is_nested():
                return
            self._inside = True
            if id(optimizer) not in self._known:
                self._learn(optimizer)
            if self._asked:
                self._differ(self._known[id(optimizer)])
        except Exception as error:  # training continues, whatever breaks here
            self._broken(error)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Post hook of an optimizer's step: restore the program's values, pass the boundary."""
        if not self._inside or get_ident() != self._main:
            return
        if self._depth:
            self._depth -= 1
            return
        self._inside = False
        try:
            if self._asked and (known := self._known.get(id(optimizer))) and known.taken:
                self._report(known)
            if self._kept:
                self._put_back()
            if self.counts:
                boundary = self._boundary
                step = boundary.step + 1
                if boundary.reach(step, step):
                    self._attend()
        except Exception as error:  # training continues, whatever breaks here
            self._broken(error)

    def _is_nested(self) -> bool:
        """Tell whether a step is nested in another; if not, the last one raised an exception.

        A subclass may call the `step` of its parent, a wrapper that of the wrapped optimizer.
        """
        torchs = sys._getframe(2)
        caller = torchs.f_back
        while caller is not None:
            if caller.f_code is torchs.f_code:
                self._depth += 1
                return True
            caller = caller.f_back
        self._depth = 0
        self._put_back()
        return False

    def _learn(self, optimizer: Any) -> None:
        key = id(optimizer)
        self._numbers += 1
        forget = weakref.ref(optimizer, lambda _: self._known.pop(key, None))
        known = self._known[key] = KnownOptimizer(self._numbers, forget)
        if (state := self._carried.pop(known.number, None)) is not None:
            knobs.put_back(known, state)
            self._asked = self._asked or bool(known.rules)
        self._learned(steps_before(optimizer))

    def _differ(self, known: KnownOptimizer) -> None:
        """Apply a stop or the rules to this step."""
        if self._stopping:
            raise SystemExit(0)
        if known.rules or known.armed:
            self._replace(known)

    def _replace(self, known: KnownOptimizer) -> None:
        armed, known.armed = known.armed, []
        self._leave_to_the_program(known)
        known.taken += [self._plan(known, one) for one in armed]  # also those of a failed step
        groups = known.groups()
        for (at, name), rule in known.rules.items():
            if at < len(groups):
                self._kept.append(ReplacedValue.replace(groups[at], name, rule))
                known.used[at, name] = plain(groups[at][name])

    def _plan(self, known: KnownOptimizer, armed: ArmedChange) -> TakenChange:
        """Set the rules of a change from now on."""
        change, name, groups = armed.change, armed.name, known.groups()
        keys = known.covered(name)
        rules = [known.rules.get(key) for key in keys]
        covered = [groups[index] for index, _ in keys]
        value, hold = change.request.values[name], change.request.hold
        then = change.request.then.get(name)
        new, before = plan(keys[0][1], covered, rules, value, hold, then)
        if is_own := not hold and _is_followed(armed, _value(groups, keys[0])):
            before, new = armed.was, [None for _ in keys]
        elif (past := known.before(change.request.undo, name)) is not None:
            new = past
        known.turn(change.id, name, list(zip(keys, rules, new, strict=True)))
        taken = TakenChange(armed, keys, before, is_own)
        if armed.ratio is not None and not (is_own or hold):
            known.unsure.append(taken)
        return taken

    def _leave_to_the_program(self, known: KnownOptimizer) -> None:
        """Drop the rules of changes that the program itself applied in the step before."""
        unsure, known.unsure = known.unsure, []
        groups = known.groups()
        for one in unsure:
            if _is_followed(one.armed, _value(groups, one.keys[0])):
                change, name = one.armed.change.id, one.armed.name
                turns: list[Turn] = [(key, old, None) for key, old, _ in known.past[change, name]]
                known.turn(change, name, turns)

    def _report(self, known: KnownOptimizer) -> None:
        """Report the changes that this step applied; another value than requested is an event."""
        taken, known.taken = known.taken, []
        groups = known.groups()
        for one in taken:
            found = [_value(groups, key) for key in one.keys]
            used = next((value for value in found if value), found[0])
            if not (one.is_own or one.armed.change.request.undo or is_same(used, one.value)):
                name, step = one.armed.name, self._boundary.step
                facts = {"name": name, "set": one.value, "used": used, "step": step}
                self._event("knob_not_used", facts)
            one.armed.change.done(one.armed.name, self._boundary.step, one.before, used)

    def _put_back(self) -> None:
        kept, self._kept = self._kept, []
        for one in kept:
            one.put_back()

    # For checkpoints and live recovery.

    def state(self) -> dict[int, Mapping[str, Any]]:
        """Return the rules of each optimizer, by its number."""
        known = {one.number: knobs.state_of(one) for one in list(self._known.values())}
        return self._carried | known

    def restore(self, state: Mapping[int, Mapping[str, Any]]) -> set[tuple[str, str]]:
        """Keep rules for optimizers to come; return the changes that none has applied yet."""
        self._carried = dict(state)
        return {(command, name) for one in state.values() for command, name in one["waiting"]}

    def take_over(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over the rules of a peer that is a step ahead."""
        self._carried = {n: one for n, one in state.items() if n > self._numbers}
        for known in list(self._known.values()):
            if (found := state.get(known.number)) is not None:
                waiting = {(command, name) for command, name in found["waiting"]}
                known.armed = [one for one in known.armed if (one.change.id, one.name) in waiting]
                known.rules.clear()
                known.past.clear()
                knobs.put_back(known, found)
                self._asked = self._asked or bool(known.rules)

    # Knobs.

    def misaligned(self) -> str:
        """Return why the steps of different ranks cannot be aligned, else an empty text."""
        if self._elsewhere:
            return "not aligned: optimizer steps are taken on threads besides the main one"
        if len(self._known) > MOST:
            return f"not aligned: {len(self._known)} optimizers take steps, more than {MOST}"
        return ""

    def find(self, name: str) -> KnownOptimizer | None:
        """Return the optimizer that has a knob of this name."""
        known = list(self._known.values())
        return next((one for one in known if name in (own for own, _, _ in one.names())), None)

    def number(self, optimizer: Any) -> int:
        """Return the number of an optimizer in the order of first steps; 0 if it is not known."""
        known = self._known.get(id(optimizer))
        return known.number if known else 0

    def names(self) -> tuple[str, ...]:
        return tuple(name for one in list(self._known.values()) for name, _, _ in one.names())

    def arm(self, change: KnobChange, name: str, ratio: float | None = None) -> None:
        """Use the value in the next step of the optimizer and in all later ones.

        A program that copies the config into its optimizers applies the change itself. That shows
        in its next step, or the one after: its own value has changed by the same `ratio`.
        """
        known = self.find(name)
        if known is None:
            raise BadKnobValue(f"the optimizer of {name} no longer exists")
        was = _value(known.groups(), known.covered(name)[0])
        own = float(was) if isinstance(was, int | float) else 0.0
        known.armed.append(ArmedChange(change, name, ratio if own > 0 else None, own))
        self._asked = True

    def shown(self) -> tuple[plane.Knob, ...]:
        """Return all knobs as messages."""
        return tuple(
            plane.Knob(name, value, "json" if what == "betas" else "float", 0.0, _highest(what))
            for name, what, value in self._values()
        )

    def values(self) -> dict[str, float]:
        """Return the values that the last steps used; items of a list by their index."""
        found: dict[str, float] = {}
        for name, _, value in self._values():
            parts = {name: value}
            if isinstance(value, list):
                parts = {f"{name}.{at}": part for at, part in enumerate(value)}
            found |= {key: float(v) for key, v in parts.items() if isinstance(v, int | float)}
        return found

    def _values(self) -> Iterator[tuple[str, str, Value]]:
        for known in list(self._known.values()):
            groups = known.groups()
            for name, at, what in known.names():
                index = at if at >= 0 else 0
                yield name, what, known.used.get((index, what), plain(groups[index].get(what)))


def steps_before(optimizer: Any) -> int:
    """Return how many steps an optimizer's state counts, which a checkpoint may have restored."""
    try:
        parameters = (group["params"][0] for group in optimizer.param_groups if group["params"])
        counts = (optimizer.state.get(one, {}).get("step") for one in parameters)
        return next((int(count) for count in counts if count is not None), 0)
    except Exception:  # an optimizer of another kind: its steps are counted from here
        return 0


def check(name: str, value: Value) -> Value:
    """Return the value for an optimizer's knob; raise BadKnobValue if it does not fit."""
    match = _NAME.fullmatch(name)
    if match is None or match[2] != "betas":
        what = match[2] if match else name
        return within(name, typed(name, "float", value), 0.0, _highest(what))
    if not isinstance(value, list) or len(value) != 2:
        raise BadKnobValue(f"{name} takes a list of two numbers, not {value!r}")
    betas = [within(name, typed(name, "float", part), 0.0, None) for part in value]
    if not all(isinstance(beta, float) and beta < 1.0 for beta in betas):
        raise BadKnobValue(f"{name} must be below 1, not {value!r}")
    return betas


def is_name(name: str) -> bool:
    """Tell whether an optimizer may have a knob of this name."""
    return _NAME.fullmatch(name) is not None


def is_same(used: Value, wanted: Value) -> bool:
    """Tell whether a value is the requested one, within 32-bit precision."""
    if isinstance(used, list) and isinstance(wanted, list):
        return len(used) == len(wanted) and all(map(is_same, used, wanted))
    if isinstance(used, int | float) and isinstance(wanted, int | float):
        return math.isclose(used, wanted, rel_tol=1e-6, abs_tol=1e-12)
    return used == wanted


def _is_followed(armed: ArmedChange, now: Value) -> bool:
    """Tell whether the program's own value changed like its config, not like a schedule."""
    if armed.ratio is None or armed.ratio <= 0 or not isinstance(now, int | float) or now <= 0:
        return False
    moved, asked = math.log(now / armed.was), math.log(armed.ratio)
    return abs(moved - asked) < abs(moved)


def _value(groups: list[dict[str, Any]], key: Key) -> Value:
    return plain(groups[key[0]].get(key[1]))


def is_number(value: Any, what: str) -> bool:
    """Tell whether an optimizer's value has the expected type; programs may store others."""
    if what == "betas":
        return isinstance(value, tuple | list) and len(value) == 2
    if hasattr(value, "fill_"):
        return bool(value.numel() == 1)
    return isinstance(value, int | float)


def _highest(what: str) -> float | None:
    return _HIGHEST.get(what)
