"""Carry out commands in the training thread, at the boundary where they act."""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

from torchloom.bus.messages import Applied, Head, Kind, Message, Planned, Refused, Value
from torchloom.errors import Failure
from torchloom.worker.threadlet import optimizers
from torchloom.worker.threadlet.boundary import Boundary, Order
from torchloom.worker.threadlet.change import Change, Wish
from torchloom.worker.threadlet.knobs import Knobs, UnknownKnob
from torchloom.worker.threadlet.optimizers import Optimizers


class NotNow(Failure):
    """The rank cannot take part in a step-aligned command."""

    code = "not_aligned"


class Acts:
    """What each kind of command means for this rank."""

    def __init__(
        self,
        head: Head,
        boundary: Boundary,
        knobs: Knobs,
        watched: Optimizers,
        say: Callable[[Message], None],
    ) -> None:
        self.stopping = False
        self.releasing = False  # stopped so that another can have the devices: to be gone on with
        self.savers: list[Callable[[int], object]] = []
        self.loggers: list[Callable[[str], object]] = []  # of step digests, by a log's name
        self._head = head
        self._boundary = boundary
        self._knobs = knobs
        self._optimizers = watched
        self._say = say
        self._done: set[str] = set()  # changes that acted in this process
        self._newer: set[str] = set()  # knobs that commands have changed in this generation
        self._missing: list[tuple[Change, str]] = []
        self._since = 0  # the step this life went on from
        self._untaken: set[tuple[str, str]] = set()  # changes that had not acted by then
        self._changes: dict[str, Planned] = {}  # of knobs that acted here, in their order

    def move_on(self, head: Head) -> None:
        """Speak for another generation from now on."""
        self._head = head

    @property
    def changes(self) -> tuple[Planned, ...]:
        """Return every change of knobs that has acted in this process, with its step."""
        return tuple(self._changes.values())

    def go_on(self, step: int, untaken: set[tuple[str, str]]) -> None:
        """Begin at the step of a checkpoint, which has what changes before it made of optimizers.

        Those that no optimizer had taken by then are still to act.
        """
        self._since, self._untaken = step, untaken

    def check(self, kind: Kind, payload: dict[str, Value]) -> None:
        """Raise why this rank cannot do a command, if so."""
        if self._boundary.kind == "none":
            raise NotNow("no step boundary has been seen in this process yet")
        if self._boundary.kind == "attached" and (why := self._optimizers.misaligned()):
            raise NotNow(why)
        if kind == "checkpoint" and not self.savers:
            raise NotNow(
                "the program has no way to save: give it one with run.on('checkpoint', f), or have"
                " its state carried by run.wrap and run.track"
            )
        if kind == "digest" and not self.loggers:
            raise NotNow(
                "the program's state is not known: have it carried by run.wrap and run.track"
            )
        if kind == "knob":
            for name, value in Wish.of(payload).values.items():
                self._check(name, value)

    def act(self, order: Order) -> None:
        """Do what a committed command says, here and now."""
        try:
            self._act(order)
        except Exception as error:  # a handler is the program's own code; training goes on
            self._failed(order.command, error)

    def resumed(self, order: Order, step: int) -> None:
        """Say that a pause is over."""
        self._applied(order.command, step)

    def make_up(self) -> None:
        """Do what was due before a knob was there, now that it may be."""
        missing, self._missing = self._missing, []
        for change, name in missing:
            if not self._has(name):
                self._missing.append((change, name))
                continue
            try:
                self._change(change, name)
            except Exception as error:  # as above
                self._failed(change.command, error)

    def _act(self, order: Order) -> None:
        if order.kind == "knob":
            told = order.command, order.effective, order.payload, order.origin == "past"
            self._changes[order.command] = Planned(*told)
        match order.kind:
            case "knob" if order.origin == "here":
                wish = Wish.of(order.payload)
                values = {name: self._check(name, value) for name, value in wish.values.items()}
                change = Change(order.command, replace(wish, values=values), self._applied)
                self._newer.update(values)
                for name in values:
                    self._change(change, name)
                self._done.add(change.id)
            case "knob":
                self._again(order)
            case "pause":
                self._applied(order.command, self._boundary.step)
                self._boundary.pause(order)
            case "stop":
                self.stopping = True
                self.releasing = bool(order.payload.get("release"))
                self._applied(order.command, self._boundary.step)
            case "digest":
                for switch in self.loggers:
                    switch(str(order.payload.get("log") or ""))
                self._applied(order.command, self._boundary.step)
            case "checkpoint":
                for save in self.savers:
                    save(self._boundary.step)
                self._applied(order.command, self._boundary.step)

    def _again(self, order: Order) -> None:
        """Do what was decided before this process was there, at the same step.

        A knob that is not there yet gets its value when it is. What an earlier generation did
        gives way to what somebody wants in this one.
        """
        change = Change(order.command, Wish.of(order.payload), self._applied)
        for name in change.wish.values:
            if self._is_over(order, change, name):
                change.done(name, self._boundary.step, None, None)
            elif self._has(name):
                self._change(change, name)
            else:
                self._missing.append((change, name))
        self._done.add(change.id)

    def _change(self, change: Change, name: str) -> None:
        value, undo = change.wish.values[name], change.wish.undo
        if undo and undo not in self._done:  # nothing of it is in force here
            change.done(name, self._boundary.step, None, None)
        elif name in self._knobs:
            before = self._knobs.change(name, value)
            change.done(name, self._boundary.step, before, value)
        else:
            self._optimizers.arm(change, name)

    def _is_over(self, order: Order, change: Change, name: str) -> bool:
        """Tell whether a change gives way to a newer one, or the checkpoint has what came of it.

        It has the rules of optimizers only, not the program's own knobs.
        """
        if order.origin == "past" and name in self._newer:
            return True
        if name in self._knobs or order.effective >= self._since:
            return False
        return (change.id, name) not in self._untaken

    def _has(self, name: str) -> bool:
        return name in self._knobs or self._optimizers.find(name) is not None

    def _check(self, name: str, value: Value) -> Value:
        if name in self._knobs:
            return self._knobs.get(name).check(value)
        if self._optimizers.find(name) is None:
            raise UnknownKnob(name, self._knobs.names() + self._optimizers.names())
        return optimizers.check(name, value)

    def _failed(self, command: str, error: Exception) -> None:
        traceback.print_exc(file=sys.stderr)
        why = f"failed in step {self._boundary.step}: {type(error).__name__}: {error}"
        self._say(Refused(self._head, command, why))

    def _applied(self, command: str, step: int, before: Value = None, after: Value = None) -> None:
        self._say(Applied(self._head, command, step, before, after))
