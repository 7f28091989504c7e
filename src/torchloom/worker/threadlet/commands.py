"""Carry out commands in the training thread, at the boundary where they act."""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchloom.errors import Failure
from torchloom.messages.plane import Applied, Head, Kind, Message, Planned, RankRefusal, Value
from torchloom.rules.control.command import NotAKnob
from torchloom.worker.threadlet import optimizers
from torchloom.worker.threadlet.boundary import PromisedCommand, StepBoundary
from torchloom.worker.threadlet.knobs import (
    KnobChange,
    KnobRequest,
    ProgramKnob,
    ProgramKnobs,
    UnknownKnob,
    within,
)
from torchloom.worker.threadlet.optimizers import Optimizers


class NotAligned(Failure):
    """The rank cannot take part in a step-aligned command."""

    code = "not_aligned"


class PartlyAttached(NotAligned):
    """The program's process group has ranks that this job does not have."""

    code = "partly_attached"

    def __init__(self, known: int, world: int) -> None:
        super().__init__(
            f"partly attached: the program trains with {world} ranks, of which this job has"
            f" {known}, and a change would part their weights; have torchloom start all of them:"
            f" `loom launch -n {world} ...`"
        )


class Acts:
    """What each kind of command means for this rank."""

    def __init__(
        self,
        head: Head,
        world_size: int,
        boundary: StepBoundary,
        knobs: ProgramKnobs,
        watched: Optimizers,
        send: Callable[[Message], None],
        introduce: Callable[[], None],
    ) -> None:
        self.stopping = False
        self.releasing = False  # stopped so that another can have the devices: to be gone on with
        self.savers: list[Callable[[int], object]] = []
        self.loggers: list[Callable[[str], object]] = []  # of step digests, by a log's name
        self._head = head
        self._world_size = world_size
        self._boundary = boundary
        self._knobs = knobs
        self._optimizers = watched
        self._send = send
        self._introduce = introduce
        self._done: set[str] = set()  # changes that acted in this process
        self._newer: set[str] = set()  # knobs that commands have changed in this generation
        self._missing: list[tuple[KnobChange, str]] = []
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

    def is_own(self, name: str) -> bool:
        """Tell whether the program itself has a knob of this name, be there an optimizer's too."""
        knob = self._knobs.get(name)
        return knob is not None and knob.is_own

    def resume_at(self, step: int, untaken: set[tuple[str, str]]) -> None:
        """Begin at the step of a checkpoint, which has what changes before it made of optimizers.

        Those that no optimizer had taken by then are still to act.
        """
        self._since, self._untaken = step, untaken

    def check(self, kind: Kind, payload: dict[str, Value]) -> None:
        """Raise why this rank cannot do a command, if so."""
        if self._boundary.kind == "none":
            raise NotAligned("no step boundary has been seen in this process yet")
        if self._boundary.kind == "attached" and (why := self._optimizers.misaligned()):
            raise NotAligned(why)
        if kind != "resume" and (world := program_world()) > self._world_size:
            raise PartlyAttached(self._world_size, world)
        if kind == "checkpoint" and not self.savers:
            raise NotAligned(
                "the program has no way to save: give it one with run.on('checkpoint', f), or have"
                " its state carried by run.wrap and run.track"
            )
        if kind == "digest" and not self.loggers:
            raise NotAligned(
                "the program's state is not known: have it carried by run.wrap and run.track"
            )
        if kind == "knob":
            for name, value in KnobRequest.of(payload).values.items():
                self._check(name, value)

    def act(self, order: PromisedCommand) -> None:
        """Do what a committed command says, here and now."""
        try:
            self._act(order)
        except Exception as error:  # a handler is the program's own code; training goes on
            self._failed(order.command, error)

    def resumed(self, order: PromisedCommand, step: int) -> None:
        """Send that a pause is over."""
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

    def read(self, knob: ProgramKnob) -> None:
        """Take in that a step has read a value: it is a knob from now on, a change is in use."""
        is_news, knob.is_read = not (knob.is_read or knob.is_offered), True
        unread, knob.unread = knob.unread, None
        if unread is not None:
            change, before = unread
            change.done(knob.name, self._boundary.step, before, knob.value)
        if is_news:
            self._introduce()

    def _act(self, order: PromisedCommand) -> None:
        if order.kind == "knob":
            fields = order.command, order.effective, order.payload, order.origin == "past"
            self._changes[order.command] = Planned(*fields)
        match order.kind:
            case "knob" if order.origin == "here":
                request = KnobRequest.of(order.payload)
                values = {name: self._check(name, value) for name, value in request.values.items()}
                change = KnobChange(order.command, replace(request, values=values), self._applied)
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

    def _again(self, order: PromisedCommand) -> None:
        """Do what was decided before this process was there, at the same step.

        A knob that is not there yet gets its value when it is. What an earlier generation did
        gives way to what somebody wants in this one.
        """
        change = KnobChange(order.command, KnobRequest.of(order.payload), self._applied)
        for name, value in change.request.values.items():
            knob = self._knobs.get(name)
            if self._is_over(order, change, name):
                change.done(name, self._boundary.step, None, None)
            elif self._has(name):
                self._change(change, name)
                continue
            else:
                self._missing.append((change, name))
            if knob is not None and not knob.is_own and name not in self._newer:
                knob.value = value  # what the program finds in its config, all the same
        self._done.add(change.id)

    def _change(self, change: KnobChange, name: str) -> None:
        """Give a knob its new value: an optimizer's goes before a mere value of the config."""
        value, undo = change.request.values[name], change.request.undo
        knob = self._knobs.get(name)
        if undo and undo not in self._done:  # nothing of it is in force here
            change.done(name, self._boundary.step, None, None)
        elif (knob is None or not knob.is_own) and self._optimizers.find(name) is not None:
            self._optimizers.arm(change, name, _ratio(knob, value))
            if knob is not None:
                knob.value = value
        else:
            self._set(change, name, value)

    def _set(self, change: KnobChange, name: str, value: Value) -> None:
        """Change a knob of the program's own; it is in use when a handler or a step has it."""
        before = self._knobs.change(name, value)
        knob = self._knobs.get(name)
        assert knob is not None
        if knob.unread is not None:
            why = f"{name} was set again before a step had read it"
            self._send(RankRefusal(self._head, knob.unread[0].command, why, is_late=True))
            knob.unread = None
        if knob.handlers:
            change.done(name, self._boundary.step, before, value)
        else:
            knob.unread = change, before

    def _is_over(self, order: PromisedCommand, change: KnobChange, name: str) -> bool:
        """Tell whether a change gives way to a newer one, or the checkpoint has what came of it.

        It has the rules of optimizers only, not the program's own knobs.
        """
        if order.origin == "past" and name in self._newer:
            return True
        if not self._is_optimizers(name) or order.effective >= self._since:
            return False
        return (change.id, name) not in self._untaken

    def _has(self, name: str) -> bool:
        """Tell whether a change can act now; one of an optimizer waits for its first step."""
        if self._is_optimizers(name):
            return self._optimizers.find(name) is not None
        return self._knobs.get(name) is not None

    def _is_optimizers(self, name: str) -> bool:
        """Tell whether a name means an optimizer's value, of one that may still be to come."""
        knob = self._knobs.get(name)
        return knob is None or (not knob.is_own and optimizers.is_name(name))

    def _check(self, name: str, value: Value) -> Value:
        knob = self._knobs.get(name)
        if (knob is None or not knob.is_own) and self._optimizers.find(name) is not None:
            value = optimizers.check(name, value)
            return value if knob is None else within(name, value, knob.low, knob.high)
        if knob is None:
            raise UnknownKnob(name, self._knobs.offered() + self._optimizers.names())
        if not knob.is_offered:
            raise NotAKnob(name)
        return knob.check(value)

    def _failed(self, command: str, error: Exception) -> None:
        traceback.print_exc(file=sys.stderr)
        why = f"failed in step {self._boundary.step}: {type(error).__name__}: {error}"
        self._send(RankRefusal(self._head, command, why, is_late=True))

    def _applied(self, command: str, step: int, before: Value = None, after: Value = None) -> None:
        self._send(Applied(self._head, command, step, before, after))


def program_world() -> int:
    """Return how many ranks the program's own process group has; 0 while there is none."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0
    size: int = dist.get_world_size()
    return size


def _ratio(knob: ProgramKnob | None, value: Value) -> float | None:
    """Return by how much a value of the config changes, where that is a number."""
    if knob is None:
        return None
    before = knob.value
    if not (isinstance(before, int | float) and isinstance(value, int | float) and before):
        return None
    return float(value) / float(before)
