"""Everything together: nodes, processes, weavers, the network between them, and the faults."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchloom.messages.membership import Transfer
from torchloom.rules.membership.election import What
from torchloom.rules.membership.events import (
    GenerationBegan,
    GenerationChange,
    GenerationCommitted,
    JobFailed,
    MemberReport,
    RestartBegan,
    Seal,
    Sealed,
)
from torchloom.rules.membership.generation import GenerationPhase
from torchloom.rules.membership.live_recovery import begin

from . import faults
from .checks import Broken, Checks, label
from .clock import Clock
from .group import Group
from .laws import Laws
from .model import Own, Part
from .node import Node
from .process import Process
from .setting import EVENTS, Fault, Setting, setting_of
from .storage import Storage
from .weaver import Weaver

LONGEST = 900.0  # virtual seconds after the last fault
MOST = 60_000  # events
LINGER = 4.0  # virtual seconds after the end


class World:
    """One run of one seed."""

    def __init__(self, seed: int, laws: Laws | None = None, is_traced: bool = False) -> None:
        self.setting: Setting = setting_of(seed)
        self.laws = laws or Laws()
        self.clock = Clock(seed, is_traced)
        self.coverage: Counter[tuple[str, str]] = Counter()
        setting = self.setting
        self.first = begin(setting.holding, setting.nodes, setting.room, setting.limits)
        self.record = self.first.record  # what is in the database
        self.boots: dict[str, int] = {}
        self.epoch = 0
        self.stores: set[int] = set()
        self.storage = Storage(setting.ranks)
        self.excused: set[int] = set()  # ranks whose pages were lost with a node or a keeper
        self.nodes = {name: Node(self, name) for name in setting.room}
        self.groups: dict[int, Group] = {}
        self.results: dict[int, tuple[int | None, int]] = {}
        self.checks = Checks(self)
        self.faults = faults.Faults(self)
        self.weavers = [Weaver(self)]
        self.last_fault = 0.0
        self.last: dict[str, Any] = {}  # the last word of each kind
        self.ended_at: float | None = None
        self.has_seen_stop = self.has_seen_finish = False  # of any process so far

    def run(self) -> "World":
        """Let everything happen until the job has ended; it must."""
        clock, waiting = self.clock, list(self.setting.faults)
        while not self._is_over():
            if waiting and waiting[0].at <= clock.count:  # they are in order
                self._strike(waiting)
            if clock.count >= EVENTS and self.faults.is_stormy:
                self.faults.calm()
            if not clock.advance():
                raise Broken(f"seed {self.setting.seed}: nothing happens any more")
            if clock.now - self.last_fault > LONGEST or clock.count > MOST:
                raise Broken(f"seed {self.setting.seed}: it hangs in {label(self.record)}")
        self.checks.ends()
        return self

    def _strike(self, waiting: list[Fault]) -> None:
        """Let faults happen that are due, and take them from those that wait."""
        for fault in [fault for fault in waiting if self._is_due(fault)]:
            waiting.remove(fault)
            self.faults.strike(fault.kind)
            self.last_fault = self.clock.now

    def _is_over(self) -> bool:
        """Tell whether the job ended a while ago: long enough for late words to come."""
        if not self.has_ended():
            self.ended_at = None
            return False
        if self.ended_at is None:
            self.ended_at = self.clock.now
        return self.clock.now - self.ended_at > LINGER

    def _is_due(self, fault: Fault) -> bool:
        if self.clock.count < fault.at:
            return False
        if fault.phase == "finishing":
            return self.has_seen_finish and any(p.phase == "finished" for p in self.members())
        return fault.phase in ("", self.record.phase)

    def has_ended(self) -> bool:
        """Tell whether the job is over and nothing of it runs on a node that can be reached."""
        if self.record.phase not in (GenerationPhase.COMPLETE, GenerationPhase.FAILED):
            return False
        return not any(node.processes for node in self.nodes.values())

    # Who is there.

    def group(self, generation: int) -> Group:
        if generation not in self.groups:
            self.groups[generation] = Group(self, generation)
        return self.groups[generation]

    def members(self) -> list[Process]:
        """Return the processes that have a seat, as the database has it."""
        found = (self.member(rank) for rank in range(self.setting.ranks))
        return [process for process in found if process is not None]

    def member(self, rank: int | None) -> Process | None:
        if rank is None:
            return None
        seat = self.record.seats[rank]
        node = self.nodes.get(seat.node)
        process = node.processes.get(rank) if node else None
        return process if process is not None and process.who.life == seat.life else None

    def healthy(self) -> list[Process]:
        """Return members that have trained, can be reached, and that nobody has given up."""
        seats = self.record.seats
        return [
            process
            for process in self.members()
            if process.generation >= 0
            and process.node.is_heard
            and not process.is_stopped
            and seats[process.rank].is_up
            and process.who not in self.faults.doomed
        ]

    def stopped(self, seconds: float) -> list[Process]:
        if not self.has_seen_stop:
            return []
        since = self.clock.now - seconds
        return [p for p in self.members() if p.is_stopped and p.stopped_at <= since]

    # The network.

    def to_weavers(self, node: Node, word: Any) -> None:
        for weaver in self.weavers:
            if node.is_apart or (not weaver.is_newest and self.clock.chance(0.7)):
                continue  # to one that was replaced, only what was on its way still comes
            self._carry(weaver.hear, node, word)

    def to_node(self, weaver: Weaver, name: str, order: Any) -> None:
        node = self.nodes.get(name)
        if node is not None and not node.is_apart:
            mode = weaver.state.record.mode
            self._carry(node.receive, weaver.epoch, node.boots, mode, order)

    def to_weaver(self, weaver: Weaver, event: Any) -> None:
        """Say what somebody else noticed: who watches processes, stores or storage."""
        self._carry(weaver.feed, event)

    def to_storage(self, weaver: Weaver, order: Seal) -> None:
        self._carry(self._seal, weaver, order)

    def _seal(self, weaver: Weaver, order: Seal) -> None:
        newest = self.storage.seal(order.generation)
        self.to_weaver(weaver, Sealed(order.generation, newest))

    def _carry(self, act: Any, *words: Any) -> None:
        loss, twice = self.faults.network()
        if self.clock.chance(loss):
            return
        self.clock.soon(act, *words, mean=0.001)
        if self.clock.chance(twice):
            self.clock.soon(act, *words, mean=self.clock.rng.choice((0.05, 1.0)))

    def is_apart(self, processes: Iterable[Process]) -> bool:
        return any(process.node.is_apart for process in processes)

    def is_cut(self, process: Process) -> bool:
        return self.faults.is_cut(process)

    # What ranks ask of the world.

    def prologue(self) -> tuple[float, int]:
        return self.faults.prologue()

    def fails_to_fork(self) -> bool:
        return self.faults.takes("bad_fork")

    def corrupts(self, plan: Transfer) -> bool:
        """Tell whether what a member takes is damaged; a checkpoint that is, is set aside."""
        if not self.faults.takes("corrupt"):
            return False
        is_saved = any(move.what == What.CHECKPOINT for move in plan.given)
        if is_saved and self.clock.chance(0.7):
            self.storage.committed.pop(plan.start, None)
            self.cover("branch", "checkpoint_set_aside")
        return True

    def exception_in(self, rank: int, step: int) -> str:
        return self.faults.exception_in(rank, step)

    def page_of(self, rank: int | None, step: int) -> Own | None:
        process = self.member(rank)
        return process.node.page(process.rank, step) if process else None

    def copy_of(self, holder: int | None, whose: int, step: int) -> Part | None:
        process = self.member(holder)
        if process is None or process.node.is_apart:
            return None
        return process.node.copies.get(process.rank, {}).get((whose, step))

    def boundary(self, process: Process) -> None:
        """Copy and save what a rank has before a step, where that is due."""
        step, setting = process.applied or 0, self.setting
        if step and setting.copy_every and step % setting.copy_every == 0:
            own = [s for w, s in process.node.copies_of(process.rank) if w == process.rank]
            if max(own, default=-1) <= process.copy or process.copy < 0:
                process.node.put_copy(process.rank, process.rank, step, process.part())
                self.clock.soon(self._copied, process, process.generation, step, process.part())
        if step and setting.save_every and step % setting.save_every == 0:
            self.clock.soon(self._saved, process, process.generation, step, process.part())

    def _copied(self, process: Process, generation: int, step: int, part: Part) -> None:
        """Give the next rank a copy, if both are still in the generation that made it."""
        other = self.member((process.rank + 1) % self.setting.ranks)
        pair = [one for one in (process, other) if one is not None and one.is_training]
        if other is not None and [one.generation for one in pair] == [generation] * 2:
            other.node.put_copy(other.rank, process.rank, step, part)

    def _saved(self, process: Process, generation: int, step: int, part: Part) -> None:
        if process.phase == "dead":
            return
        if self.storage.write(step, generation, process.rank, part):
            parts = self.storage.committed[step]
            shared = tuple(parts[rank].shared for rank in sorted(parts))
            if self.checks.is_exact:
                self.checks.that(shared == self.checks.expected.shared[step], "a bad checkpoint")

    # What the weaver tells.

    def told(self, effect: GenerationChange) -> None:
        self.cover("told", type(effect).__name__)
        match effect:
            case GenerationBegan():
                self.cover("reason", effect.reason.rstrip("0123456789_").replace("_n", ""))
            case GenerationCommitted():
                self.checks.commits(effect)
                self.cover("origin", effect.plan.origin)
                for what in {move.what for move in effect.plan.moves}:
                    self.cover("move", what)
                self.cover("exact", str(not effect.plan.inexact))
            case RestartBegan():
                self.cover("restart", effect.cause)
                self.checks.restarts(effect)
            case JobFailed():
                self.cover("fail", effect.cause)

    def weaver_dies(self, weaver: Weaver) -> None:
        """End one life of the weaver; the next begins with what is stored."""
        if weaver.is_up:
            self.clock.note("weaver", weaver.epoch, "dies")
            weaver.is_up = False
            self.weavers.remove(weaver)
            if weaver.is_newest:
                pause = self.clock.rng.choice((0.01, 0.3, 3.0))
                self.clock.after(pause, self.weaver_comes)

    def weaver_comes(self) -> None:
        weaver = Weaver(self)
        self.weavers.append(weaver)
        self.clock.note("weaver", weaver.epoch, "begins in", label(self.record))
        for node in self.nodes.values():
            node.register()

    # What was seen.

    def cover(self, what: str, which: str) -> None:
        self.coverage[what, str(which)] += 1

    def cover_event(self, weaver: Weaver, event: Any) -> None:
        what = event.message if isinstance(event, MemberReport) else event
        name, at = type(what).__name__, label(weaver.state.record)
        self.coverage[at, name] += 1
        if name not in ("Tick", "MemberNodeLost", "Registered"):
            self.last[name] = event
        if name != "Tick":
            self.clock.note("weaver", weaver.epoch, at, event)
