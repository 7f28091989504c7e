"""Torch optimizers: the attached step boundary, and the knobs that act inside a step.

A changed value stands in the optimizer only while its `step` runs, between torch's own pre and
post hooks. Outside of it every scheduler, checkpoint and print finds the program's own value.
"""

import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchloom.bus import messages
from torchloom.bus.messages import Value
from torchloom.worker.threadlet.boundary import Boundary
from torchloom.worker.threadlet.change import Change
from torchloom.worker.threadlet.knobs import BadValue, typed, within
from torchloom.worker.threadlet.scaling import Kept, Rule, plain, plan

MOST = 8  # optimizers whose steps can be told apart by a count

_FIELDS = ("lr", "weight_decay", "momentum", "betas")
_HIGHEST = {"momentum": 1.0}
_NAME = re.compile(rf"(?:opt([1-9]\d?)\.)?({'|'.join(_FIELDS)})(?:\[(\d+)\])?")


@dataclass(slots=True, eq=False)
class Known:
    """An optimizer that has taken a step, what is asked of it, and what is in force."""

    number: int
    optimizer: "weakref.ref[Any]"
    rules: dict[tuple[int, str], Rule] = field(default_factory=dict)
    armed: list[tuple[Change, str]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    used: dict[tuple[int, str], Value] = field(default_factory=dict)

    def groups(self) -> list[dict[str, Any]]:
        optimizer = self.optimizer()
        return list(optimizer.param_groups) if optimizer is not None else []

    def names(self) -> Iterator[tuple[str, int, str]]:
        """Yield each knob with its group and field; group -1 stands for all."""
        prefix = "" if self.number == 1 else f"opt{self.number}."
        groups = self.groups()
        for name in _FIELDS:
            having = [at for at, group in enumerate(groups) if is_number(group.get(name), name)]
            if having:
                yield prefix + name, -1, name
            for at in having if len(groups) > 1 else ():
                yield f"{prefix}{name}[{at}]", at, name


class Optimizers:
    """Sees every optimizer's step on the main thread."""

    def __init__(
        self, boundary: Boundary, attend: Callable[[], None], learned: Callable[[], None]
    ) -> None:
        self.counts = True  # whether a return is a boundary; not where the program says its steps
        self.stopping = False
        self._boundary = boundary
        self._attend = attend
        self._learned = learned
        self._main: int | None = threading.main_thread().ident
        self._inside: Known | None = None
        self._depth = 0
        self._elsewhere = False
        self._known: dict[int, Known] = {}
        self._numbers = 0
        self._handles: list[Any] = []
        self._broken: Callable[[BaseException], None] = lambda error: None

    # Hooks.

    def install(self, module: Any, broken: Callable[[BaseException], None]) -> None:
        """Put the hooks into torch.optim.optimizer; whatever they raise goes to `broken`."""
        if not self._handles:
            self._broken = broken
            self._handles = [
                module.register_optimizer_step_pre_hook(self.before),
                module.register_optimizer_step_post_hook(self.after),
            ]

    def remove(self) -> None:
        """Take the hooks out, for good, and leave the program's own values behind."""
        self._main = None
        for handle in self._handles:
            handle.remove()
        if self._inside is not None:
            self._put_back(self._inside)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Begin an optimizer's step: put in the values it is to use."""
        if threading.get_ident() != self._main:
            self._elsewhere = True
            return
        try:
            if self._inside is not None and self._is_nested():
                return
            known = self._known.get(id(optimizer)) or self._learn(optimizer)
            self._inside = known
            if self.stopping:
                raise SystemExit(0)
            if known.rules or known.armed:
                self._replace(known)
        except Exception as error:  # training goes on, whatever breaks here
            self._broken(error)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """End an optimizer's step: put the program's values back, and pass the boundary."""
        known = self._inside
        if known is None or threading.get_ident() != self._main:
            return
        if self._depth:
            self._depth -= 1
            return
        self._inside = None
        try:
            if known.kept:
                self._put_back(known)
            if self.counts:
                boundary = self._boundary
                step = boundary.step + 1
                if boundary.reach(step, step):
                    self._attend()
        except Exception as error:  # training goes on, whatever breaks here
            self._broken(error)

    def _is_nested(self) -> bool:
        """Tell whether a step is taken inside another's; if not, the last one raised an error.

        A subclass may call its parent's `step`, and a wrapper that of the optimizer it wraps.
        """
        torchs = sys._getframe(2)
        caller = torchs.f_back
        while caller is not None:
            if caller.f_code is torchs.f_code:
                self._depth += 1
                return True
            caller = caller.f_back
        self._depth = 0
        if self._inside is not None:
            self._put_back(self._inside)
        return False

    def _learn(self, optimizer: Any) -> Known:
        key = id(optimizer)
        self._numbers += 1
        forget = weakref.ref(optimizer, lambda _: self._known.pop(key, None))
        known = Known(self._numbers, forget)
        self._known[key] = known
        self._learned()
        return known

    def _replace(self, known: Known) -> None:
        armed, known.armed = known.armed, []
        before = [self._plan(known, change, name) for change, name in armed]
        groups = known.groups()
        for (at, name), rule in known.rules.items():
            if at < len(groups):
                known.kept.append(Kept.replace(groups[at], name, rule))
                known.used[at, name] = plain(groups[at][name])
        for (change, name), was in zip(armed, before, strict=True):
            change.done(name, self._boundary.step, was, change.wish.values[name])

    def _plan(self, known: Known, change: Change, name: str) -> Value:
        """Have the groups follow a change from now on; return the value that was used before."""
        value = change.wish.values[name]
        at, what = next((at, what) for own, at, what in known.names() if own == name)
        groups = known.groups()
        covered = [
            index
            for index, group in enumerate(groups)
            if at in (-1, index) and is_number(group.get(what), what)
        ]
        rules = [known.rules.get((index, what)) for index in covered]
        new, before = plan(what, [groups[i] for i in covered], rules, value, change.wish.hold)
        for index, rule in zip(covered, new, strict=True):
            if rule is not None:
                known.rules[index, what] = rule
        return before

    def _put_back(self, known: Known) -> None:
        kept, known.kept = known.kept, []
        for one in kept:
            one.put_back()

    # Knobs.

    def misaligned(self) -> str:
        """Return why steps of different ranks cannot be told to be the same, if so."""
        if self._elsewhere:
            return "not aligned: optimizer steps are taken on threads besides the main one"
        if len(self._known) > MOST:
            return f"not aligned: {len(self._known)} optimizers take steps, more than {MOST}"
        return ""

    def find(self, name: str) -> Known | None:
        """Return the optimizer that has a knob of this name."""
        known = list(self._known.values())
        return next((one for one in known if name in (own for own, _, _ in one.names())), None)

    def names(self) -> tuple[str, ...]:
        return tuple(name for one in list(self._known.values()) for name, _, _ in one.names())

    def arm(self, change: Change, name: str) -> None:
        """Have the optimizer's next step use the value, and all later ones."""
        known = self.find(name)
        if known is None:
            raise BadValue(f"the optimizer of {name} is gone")
        known.armed.append((change, name))

    def shown(self) -> tuple[messages.Knob, ...]:
        """Return all knobs as the weaver is told of them."""
        return tuple(
            messages.Knob(name, value, "json" if what == "betas" else "float", 0.0, _highest(what))
            for name, what, value in self._values()
        )

    def values(self) -> dict[str, float]:
        """Return what the last steps used, of those that are numbers."""
        return {name: float(v) for name, _, v in self._values() if isinstance(v, int | float)}

    def _values(self) -> Iterator[tuple[str, str, Value]]:
        for known in list(self._known.values()):
            groups = known.groups()
            for name, at, what in known.names():
                index = at if at >= 0 else 0
                yield name, what, known.used.get((index, what), plain(groups[index].get(what)))


def check(name: str, value: Value) -> Value:
    """Return the value as the optimizer's knob takes it, or say why it does not."""
    match = _NAME.fullmatch(name)
    if match is None or match[2] != "betas":
        what = match[2] if match else name
        return within(name, typed(name, "float", value), 0.0, _highest(what))
    if not isinstance(value, list) or len(value) != 2:
        raise BadValue(f"{name} takes a list of two numbers, not {value!r}")
    betas = [within(name, typed(name, "float", part), 0.0, None) for part in value]
    if not all(isinstance(beta, float) and beta < 1.0 for beta in betas):
        raise BadValue(f"{name} must be below 1, not {value!r}")
    return betas


def is_number(value: Any, what: str) -> bool:
    """Tell whether an optimizer's value is what its name promises: programs keep odd things."""
    if what == "betas":
        return isinstance(value, tuple | list) and len(value) == 2
    if hasattr(value, "fill_"):
        return bool(value.numel() == 1)
    return isinstance(value, int | float)


def _highest(what: str) -> float | None:
    return _HIGHEST.get(what)
