"""Carry out commands in the training thread, at the boundary where they act."""

import sys
import traceback
from collections.abc import Callable, Mapping

from torchloom.bus.messages import Applied, Head, Kind, Message, Refused, Value
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
        self.savers: list[Callable[[int], object]] = []
        self._head = head
        self._boundary = boundary
        self._knobs = knobs
        self._optimizers = watched
        self._say = say
        self._desired: dict[str, Value] = {}

    def check(self, kind: Kind, payload: dict[str, Value]) -> None:
        """Raise why this rank cannot do a command, if so."""
        if self._boundary.kind == "none":
            raise NotNow("no step boundary has been seen in this process yet")
        if self._boundary.kind == "attached" and (why := self._optimizers.misaligned()):
            raise NotNow(why)
        if kind == "checkpoint" and not self.savers:
            raise NotNow("the program has no way to save: give it one with run.on('checkpoint', f)")
        if kind == "knob":
            for name, value in Wish.of(payload).values.items():
                self._check(name, value)

    def act(self, order: Order) -> None:
        """Do what a committed command says, here and now."""
        try:
            self._act(order)
        except Exception as error:  # a handler is the program's own code; training goes on
            traceback.print_exc(file=sys.stderr)
            why = f"failed in step {self._boundary.step}: {type(error).__name__}: {error}"
            self._say(Refused(self._head, order.command, why))

    def resumed(self, order: Order, step: int) -> None:
        """Say that a pause is over."""
        self._applied(order.command, step)

    def desire(self, values: Mapping[str, Value]) -> None:
        """Take over values that the job's knobs had before this process was there."""
        self._desired.update(values)
        self.take_desired()

    def take_desired(self) -> None:
        """Set those desired values whose knobs are there by now."""
        for name, wanted in list(self._desired.items()):
            if name in self._knobs or self._optimizers.find(name):
                del self._desired[name]
                wish = Wish.of(wanted if isinstance(wanted, dict) else {"value": wanted})
                value = self._check(name, next(iter(wish.values.values())))
                self._change(Change("", Wish({name: value}, wish.hold), _untold))

    def _act(self, order: Order) -> None:
        match order.kind:
            case "knob":
                wish = Wish.of(order.payload)
                values = {name: self._check(name, value) for name, value in wish.values.items()}
                self._change(Change(order.command, Wish(values, wish.hold), self._applied))
            case "pause":
                self._applied(order.command, self._boundary.step)
                self._boundary.pause(order)
            case "stop":
                self.stopping = True
                self._applied(order.command, self._boundary.step)
            case "checkpoint":
                for save in self.savers:
                    save(self._boundary.step)
                self._applied(order.command, self._boundary.step)

    def _change(self, change: Change) -> None:
        for name, value in change.wish.values.items():
            if name in self._knobs:
                before = self._knobs.change(name, value)
                change.done(name, self._boundary.step, before, value)
            else:
                self._optimizers.arm(change, name)

    def _check(self, name: str, value: Value) -> Value:
        if name in self._knobs:
            return self._knobs.get(name).check(value)
        if self._optimizers.find(name) is None:
            raise UnknownKnob(name, self._knobs.names() + self._optimizers.names())
        return optimizers.check(name, value)

    def _applied(self, command: str, step: int, before: Value = None, after: Value = None) -> None:
        self._say(Applied(self._head, command, step, before, after))


def _untold(command: str, step: int, before: Value, after: Value) -> None:
    """A desired value is nobody's command."""
