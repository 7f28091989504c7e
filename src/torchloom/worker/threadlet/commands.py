"""Execute commands in the training thread, at the boundary where they take effect."""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from torchloom.errors import Failure
from torchloom.messages.plane import Applied, Head, Kind, Message, Planned, RankRefusal, Value
from torchloom.rules.control.command import NotAKnob
from torchloom.worker.environment import variables
from torchloom.worker.threadlet import inner_ranks, optimizers
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
            f" {known}, and a change would make their weights differ; start them all with"
            f" `loom launch -n {world} ...`"
        )


class UnseenRanks(NotAligned):
    """Two processes of the job train as the same rank, and only one of them can be seen."""

    code = "partly_attached"

    def __init__(self) -> None:
        super().__init__(
            "partly attached: several processes of this job train as the same rank of different"
            " process groups, and only one of them would be changed; run them as jobs of their own"
        )


class TrainerActs(Protocol):
    """A trainer that owns the program's loop: it saves and stops in its own way."""

    def why_unsaved(self) -> str:
        """Return why it cannot save now, else an empty text."""
        ...

    def save(self) -> None:
        """Save at the end of this step; `Acts.saved` is called when that is done."""
        ...

    def stop(self) -> None:
        """End the training at the end of this step."""
        ...


class Acts:
    """Executes each kind of command for this rank."""

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
        self.releasing = False  # stopped to free the devices: the job will be resumed
        self.savers: list[Callable[[int], object]] = []
        self.trainers: list[TrainerActs] = []  # loops that save and stop in their own way
        self.loggers: list[Callable[[str], object]] = []  # of step digests, by a log's name
        self._head = head
        self._world_size = world_size
        self._boundary = boundary
        self._knobs = knobs
        self._optimizers = watched
        self._send = send
        self._introduce = introduce
        self._done: set[str] = set()  # changes that were applied in this process
        self._newer: set[str] = set()  # knobs that were changed in this generation
        self._missing: list[tuple[KnobChange, str]] = []
        self._unsaved: list[str] = []  # checkpoints that a trainer has not saved yet
        self._since = 0  # the step that this process resumed at
        self._untaken: set[tuple[str, str]] = set()  # changes that were not applied by then
        self._changes: dict[str, Planned] = {}  # knob changes that were applied here, in order

    def move_on(self, head: Head, world_size: int) -> None:
        """Report for another generation from now on, or for another number of ranks."""
        self._head, self._world_size = head, world_size

    @property
    def changes(self) -> tuple[Planned, ...]:
        """Return every knob change that was applied in this process, with its step."""
        return tuple(self._changes.values())

    def is_own(self, name: str) -> bool:
        """Tell whether the program registered a knob of this name."""
        knob = self._knobs.get(name)
        return knob is not None and knob.is_own

    def resume_at(self, step: int, untaken: set[tuple[str, str]]) -> None:
        """Begin at the step of a checkpoint, whose optimizers include earlier changes.

        Changes in `untaken` had reached no optimizer by then, and are still to be applied.
        """
        self._since, self._untaken = step, untaken

    def check(self, kind: Kind, payload: dict[str, Value]) -> None:
        """Raise an error if this rank cannot execute a command."""
        if self._boundary.kind == "none":
            raise NotAligned("no step boundary has been seen in this process yet")
        if self._boundary.kind == "attached" and (why := self._optimizers.misaligned()):
            raise NotAligned(why)
        if kind != "resume":
            self._check_world()
        if (kind == "checkpoint" or payload.get("release")) and self.trainers:
            if why := self.trainers[-1].why_unsaved():
                raise NotAligned(why)
        elif kind == "checkpoint" and not self.savers:
            raise NotAligned(
                "the program has no way to save: add one with run.on('checkpoint', f), or pass its"
                " state to run.wrap and run.track"
            )
        if kind == "digest" and not self.loggers:
            raise NotAligned("the program's state is not known: pass it to run.wrap and run.track")
        if kind == "knob":
            for name, value in KnobRequest.of(payload).values.items():
                self._check(name, value)

    def _check_world(self) -> None:
        """Raise an error if the job does not have all ranks of its program."""
        if (world := inner_ranks.group()[1]) > self._world_size:
            raise PartlyAttached(self._world_size, world)
        if inner_ranks.are_unseen(variables()):
            raise UnseenRanks

    def act(self, order: PromisedCommand) -> None:
        """Execute a committed command now."""
        try:
            self._act(order)
        except Exception as error:  # a handler is the program's code; training continues
            self._failed(order.command, error)

    def resumed(self, order: PromisedCommand, step: int) -> None:
        """Report that a pause has ended."""
        self._applied(order.command, step)

    def stop_trainer(self) -> bool:
        """Stop the trainer that owns the loop; tell whether there is one."""
        for trainer in self.trainers[-1:]:
            trainer.stop()
        return bool(self.trainers)

    def saved(self, step: int, why: str = "") -> None:
        """Report the requested checkpoints: the trainer has saved this step, or why it has not."""
        commands, self._unsaved = self._unsaved, []
        for command in commands:
            if why:
                self._send(RankRefusal(self._head, command, why, is_late=True))
            else:
                self._applied(command, step)

    def make_up(self) -> None:
        """Apply changes that were due before their knob existed, if it exists now."""
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
        """Record that a step has read a value: it becomes a knob, and a change of it is in use."""
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
            case "checkpoint" if self.trainers:
                self._unsaved.append(order.command)
                self.trainers[-1].save()
            case "checkpoint":
                for save in self.savers:
                    save(self._boundary.step)
                self._applied(order.command, self._boundary.step)

    def _again(self, order: PromisedCommand) -> None:
        """Apply a change that was decided before this process joined, at the same step.

        A knob that does not exist yet gets its value later. A change of an earlier generation
        does not replace one of this generation.
        """
        is_late = order.effective < self._boundary.step
        request = KnobRequest.of(order.payload, is_late)
        change = KnobChange(order.command, request, self._applied)
        for name, value in request.values.items():
            knob = self._knobs.get(name)
            if self._is_over(order, change, name):
                change.done(name, self._boundary.step, None, None)
            elif self._has(name):
                self._change(change, name)
                continue
            else:
                self._missing.append((change, name))
            if knob is not None and not knob.is_own and name not in self._newer:
                knob.value = value  # the program sees it in its config all the same
        self._done.add(change.id)

    def _change(self, change: KnobChange, name: str) -> None:
        """Set a knob; an optimizer's knob takes precedence over a value of the config."""
        value, undo = change.request.values[name], change.request.undo
        knob = self._knobs.get(name)
        if undo and undo not in self._done:  # the change to undo is not in force here
            change.done(name, self._boundary.step, None, None)
        elif (knob is None or not knob.is_own) and self._optimizers.find(name) is not None:
            self._optimizers.arm(change, name, _ratio(knob, value))
            if knob is not None:
                knob.value = value
        else:
            self._set(change, name, value)

    def _set(self, change: KnobChange, name: str, value: Value) -> None:
        """Change a knob of the program; it is in use once a handler or a step has the value."""
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
        """Tell whether a newer change replaces this one, or the checkpoint includes it.

        A checkpoint includes the changes of optimizers, not of the program's own knobs.
        """
        if order.origin == "past" and name in self._newer:
            return True
        if not self._is_optimizers(name) or order.effective >= self._since:
            return False
        return (change.id, name) not in self._untaken

    def _has(self, name: str) -> bool:
        """Tell whether a change can be applied now; an optimizer's waits for its first step."""
        if self._is_optimizers(name):
            return self._optimizers.find(name) is not None
        return self._knobs.get(name) is not None

    def _is_optimizers(self, name: str) -> bool:
        """Tell whether a name is that of an optimizer's value, even if there is none yet."""
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


def _ratio(knob: ProgramKnob | None, value: Value) -> float | None:
    """Return the ratio by which a number of the config changes, else None."""
    if knob is None:
        return None
    before = knob.value
    if not (isinstance(before, int | float) and isinstance(value, int | float) and before):
        return None
    return float(value) / float(before)
