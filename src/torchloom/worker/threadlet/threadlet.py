"""The threadlet of this process: page, boundary, knobs and link, put together."""

import atexit
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchloom.bus.progress_page import ProgressPage, StepPhase
from torchloom.messages.plane import Boundary, Event, Goodbye, Message, Planned, Register, Value
from torchloom.worker.environment import AGENT_VARIABLE, PAGE_VARIABLE, variables
from torchloom.worker.recovery.membership import MembershipLink
from torchloom.worker.threadlet import inner_ranks, owner
from torchloom.worker.threadlet.boundary import Origin, PromisedCommand, StepBoundary
from torchloom.worker.threadlet.commands import Acts
from torchloom.worker.threadlet.control import OutcomeStore, RankControl
from torchloom.worker.threadlet.knobs import ProgramKnobs
from torchloom.worker.threadlet.link import AgentLink
from torchloom.worker.threadlet.metrics import MetricRows, Vitals
from torchloom.worker.threadlet.optimizers import Optimizers
from torchloom.worker.threadlet.rank_identity import RankIdentity

State = dict[str, Any]
_FLUSH = 10.0  # seconds to flush what was logged; a plane may still be starting
_WELCOME = 2.0  # seconds that a restarted rank waits for the current knob values


class Threadlet:
    """A rank's side of the link to its agent."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.identity = RankIdentity.of(env)
        head = self.identity.head()
        self._head = head
        self.page = _page(self.identity.page)
        self.knobs = ProgramKnobs()
        self.notes = MetricRows(head)
        judge = self._judge = OutcomeStore(self.identity, self.send)
        self.boundary = StepBoundary(
            self.page, judge, lambda order, step: self.acts.resumed(order, step)
        )
        self.optimizers = Optimizers(self.boundary, self.attend, self._learned, self.event)
        self.acts = Acts(
            head,
            self.identity.world_size,
            self.boundary,
            self.knobs,
            self.optimizers,
            self.send,
            self.introduce,
        )
        self.membership: MembershipLink | None = None  # opened by live recovery
        self.control = RankControl(
            self.identity, self.boundary, judge, self.acts.check, self.send, lambda: self.membership
        )
        self.vitals = Vitals()
        self.has_logged = False  # the program logs its own numbers by the API
        self._kind: Boundary = "attached"  # of the boundaries, once there is one
        self._begun = False
        self._is_resumed = False  # its step is that of a checkpoint
        self._noted = False
        self._link: AgentLink | None = None

    def start(self) -> None:
        """Start the link, if there is an agent."""
        self._open_link()
        os.register_at_fork(after_in_child=self.mute)

    def _open_link(self) -> None:
        if self.identity.agent:
            parts = (self.register, self.control.handle, self._collect, self.unlinked)
            self._link = AgentLink(self.identity.agent, *parts, self.notes.mend)
            self._link.start()
            atexit.register(self.close)

    def sit(self, env: Mapping[str, str]) -> None:
        """Report for a rank from now on, in a child of a rank's process that had none so far."""
        self.identity = RankIdentity.of(env)
        self.page = _page(self.identity.page)
        self.boundary.turn_to(self.page)
        self._identify()
        self._open_link()

    def watch(self, module: Any) -> None:
        """Observe the optimizers of torch.optim.optimizer."""
        self.optimizers.install(module, self.broken)

    # Messages.

    def send(self, message: Message) -> None:
        """Queue a message for the agent; never blocks."""
        if self._link is not None:
            self._link.send(message)

    def event(self, kind: str, facts: dict[str, Value]) -> None:
        """Send an event."""
        self.send(Event(self._head, kind, self.boundary.step, time.time(), facts))

    def register(self) -> Register:
        """Return the registration of this rank, with its current knobs."""
        own, others = self.knobs.shown(), self.optimizers.shown()
        taken = {knob.name for knob in others if not self.acts.is_own(knob.name)}
        knobs = (*(k for k in own if k.name not in taken), *(k for k in others if k.name in taken))
        return self.identity.register(self.boundary.kind, knobs)

    def join(self, replica: str) -> None:
        """Change the replica group that the launcher set."""
        self.identity = dataclasses.replace(self.identity, replica=replica)
        self.introduce()

    def introduce(self) -> None:
        """Register the rank again, with a new boundary or knob."""
        if self._link is not None:
            self._link.introduce()

    def _collect(self) -> Iterator[Message]:
        boundary = self.boundary
        if boundary.kind != "none" and self.vitals.is_due:
            row = self.vitals.sample(boundary.seconds(), self.optimizers.values())
            self.notes.add(boundary.step, row | self._dropped())
        return self.notes.collect()

    def _dropped(self) -> dict[str, int]:
        link = self._link
        count = self.control.dropped.total() + (link.dropped.total() if link else 0)
        count += self.notes.lost
        return {"loom/dropped": count} if count else {}

    def on(self, name: str, handler: Callable[[Any], object], kind: type | None) -> None:
        """Call a function when a knob changes, or when a checkpoint is requested."""
        if name == "checkpoint":
            self.acts.savers.append(handler)
        else:
            self.knobs.on(name, handler, kind)
            self.introduce()

    # In the training thread.

    def follow_program(self) -> None:
        """Take step boundaries from the program's loop instead of its optimizers.

        The loop calls `begin` itself, since it may resume at a later step.
        """
        self.optimizers.counts = False
        self._kind, self.has_logged = "api", True
        if self.boundary.kind == "attached":
            self.boundary.kind = "api"
            self.introduce()

    @property
    def is_followed(self) -> bool:
        """Tell whether the program's loop is `run.steps`, which no adapter may override."""
        return self._kind == "api"

    def follow_trainer(self, step: int) -> None:
        """Take step boundaries from a trainer, which begins or resumes at this step.

        Changes of knobs that the job had before are in force from this step on.
        """
        self.optimizers.counts = False
        self.boundary.step = step
        self.begin()
        self.reach(step)

    def reach(self, step: int) -> None:
        """Pass the boundary before a step, in a loop that is not `run.steps`."""
        if self.boundary.reach(step, step):
            self.attend()

    def follow_optimizers(self) -> None:
        """Take step boundaries from the optimizers again, after a trainer has ended."""
        self.optimizers.counts = not self.is_followed

    def resume_at(self, step: int, rules: Mapping[int, Mapping[str, Any]]) -> None:
        """Continue at the step of an earlier process, with the rules of its optimizers."""
        self.boundary.step = step
        self._is_resumed = True
        self.acts.resume_at(step, self.optimizers.restore(rules))

    def begin(self) -> None:
        """Before the first step: apply the knob changes of this job so far.

        A first generation has none. In later ones the ranks agree on the changes that the first of
        them was sent: a change that only some of them apply would make their weights differ.
        """
        if self._begun:
            return
        self._begun = True
        self._admit_inner_ranks()
        is_again = self.identity.generation > 0 or self.identity.start_count > 1
        if self._link is not None and is_again:
            self.control.welcomed.wait(_WELCOME)
            for change in self._judge.agree(self.control.changes):
                self._plan(change)

    def _admit_inner_ranks(self) -> None:
        """Train with the ranks that a launcher inside this process has started, if all report."""
        rank, world = inner_ranks.group()
        if self._link is None or rank or not world > self.identity.world_size == 1:
            return
        env = variables()
        if owner.is_taken(env) and inner_ranks.is_complete(env, world):
            self.identity = dataclasses.replace(
                self.identity, world_size=world, store=inner_ranks.store(env)
            )
            self._identify()

    # Live recovery.

    def open_membership(self) -> MembershipLink | None:
        """Return the link for membership messages; None without an agent."""
        if self.membership is None and self._link is not None:
            self.membership = MembershipLink(self._link.membership, self.identity.generation)
        return self.membership

    def settle(self) -> None:
        """Settle the promises of a generation before it ends."""
        self.boundary.settle_all()

    def move_on(self, generation: int, store: str) -> None:
        """Continue in another generation, with another store."""
        self.identity = dataclasses.replace(self.identity, generation=generation, store=store)
        self._identify()

    def _identify(self) -> None:
        """Have all parts use the present identity."""
        self._head = head = self.identity.head()
        self.notes.move_on(head)
        self.acts.move_on(head, self.identity.world_size)
        for one in (self._judge, self.control):
            one.move_on(self.identity)
        self.introduce()

    def orders(self) -> State:
        """Return the commands that hold for this rank, for a rank that joins."""
        ahead = [
            [order.command, order.kind, order.payload, order.effective, order.origin]
            for order in self.boundary.decided()
        ]
        done = [list(msgspec.structs.astuple(change)) for change in self.acts.changes]
        read = self.knobs.read_names()
        return {"rules": self.optimizers.state(), "done": done, "ahead": ahead, "read": read}

    def catch_up(self, step: int, orders: Mapping[str, Any]) -> None:
        """Continue at a peer's step with the peer's commands, in the place of a lost rank."""
        self._begun = True
        self.knobs.mark_read(orders.get("read", ()))
        self.resume_at(step, orders["rules"])
        known = {change.command for change in self.acts.changes}  # if this is called twice
        for change in (Planned(*fields) for fields in orders["done"]):
            if change.command not in known:
                self._plan(change)
        for command, kind, payload, effective, origin in orders["ahead"]:
            self.boundary.plan(
                PromisedCommand(command, kind, payload, step, 0, True, effective, origin)
            )

    def roll_forward(self, step: int, orders: Mapping[str, Any]) -> None:
        """Continue at the step of a peer that is ahead."""
        self.boundary.step = step
        self.optimizers.take_over(orders["rules"])

    def _plan(self, change: Planned) -> None:
        """Apply a change at its step, or now if that step has been reached."""
        here = self.boundary.step
        origin: Origin = "past" if change.done else "plan"
        order = PromisedCommand(
            change.command, "knob", change.payload, here, 0, True, change.step, origin
        )
        if change.step <= here:
            self.acts.act(order)
        else:
            self.boundary.plan(order)

    def attend(self) -> None:
        """Execute the commands that take effect at this boundary."""
        if self.boundary.kind == "none":
            self.boundary.begin(self._kind)
            self.introduce()
            if (world := inner_ranks.group()[1]) > self.identity.world_size:
                self.event("job", {"attached": world})
        while due := self.boundary.attend():
            for order in due:
                self.acts.act(order)
        if self.acts.stopping and not self.is_followed and not self.acts.stop_trainer():
            self.optimizers.stop()

    def _learned(self, steps: int) -> None:
        """Handle the first step of an optimizer, which took `steps` in an earlier process."""
        if steps and self.optimizers.counts and not self._is_resumed:
            self.boundary.step += steps
        self.begin()
        self.acts.make_up()
        self.introduce()

    # The end.

    def finish(self) -> bool:
        """Flush what was logged and close the link; tell whether all of it was stored."""
        has_all = self._link is None or self._link.flush(_FLUSH)
        self.close()
        return has_all

    def close(self) -> None:
        """Send the rest and a goodbye, and close the link."""
        if self._link is not None:
            self.page.enter(StepPhase.ENDING, time.monotonic_ns())
            self._link.close(Goodbye(self._head, self.boundary.step))
            self._link = None

    def mute(self) -> None:
        """Detach in a forked child, which does not report for the rank."""
        self.optimizers.remove()
        self.boundary.leave(ProgressPage.private())
        link, self._link = self._link, None
        if link is not None:
            link.abandon()
        self.notes.close()

    def broken(self, error: BaseException) -> None:
        """Continue without hooks, after an error of the threadlet in the training thread."""
        self._note("steps are no longer monitored", error)
        self.optimizers.remove()
        self.boundary.give_up()
        self.event("threadlet_failed", {"error": f"{type(error).__name__}: {error}"})
        self.introduce()

    def unlinked(self, error: BaseException) -> None:
        """Continue without the agent, after an error in the link's thread."""
        self._link = None
        self._note("the link to the agent is closed", error)

    def _note(self, what: str, error: BaseException) -> None:
        if not self._noted:
            self._noted = True
            why = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"loom: {what}, training continues: {why}\n")


_current: Threadlet | None = None


def current(
    unmanaged: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
    seat: Mapping[str, str] | None = None,
) -> Threadlet:
    """Return the threadlet of this process, which the first call starts.

    A process that does not report for its rank has one without a link. `unmanaged` returns the
    variables for a process that another launcher started, `seat` has those of an inner rank.
    """
    global _current
    if _current is None:
        env = dict(variables())
        if seat is not None:
            env |= seat
        elif not owner.take(variables()):
            env[AGENT_VARIABLE] = env[PAGE_VARIABLE] = ""
        elif unmanaged is not None:
            env |= unmanaged(env)
        _current = Threadlet(env)
        _current.start()
    elif seat is not None:
        _current.sit({**variables(), **seat})
    return _current


def _page(path: str) -> ProgressPage:
    if path:
        try:
            return ProgressPage.open(Path(path))
        except OSError as error:
            sys.stderr.write(f"loom: no progress page at {path}: {error}\n")
    return ProgressPage.private()
