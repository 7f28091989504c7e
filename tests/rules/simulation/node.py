"""A host: its agent, which carries words, and its keeper, which has processes and their pages."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchloom.messages.membership import EndProcess, Fork, MakeStore
from torchloom.rules.membership.election import RecoveryMode, inherits
from torchloom.rules.membership.events import Exited, ForkFailed, Registered, Send, StoreMade
from torchloom.rules.membership.faults import Fence
from torchloom.rules.membership.seats import MemberProcess

from .model import Own, Part
from .process import Process

if TYPE_CHECKING:
    from .world import World

Copies = dict[tuple[int, int], Part]


@dataclass(frozen=True, slots=True)
class Stored:
    """A weaver has stored how a process ended."""

    who: MemberProcess


class Node:
    """One host of the job."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.is_up = True
        self.has_agent = True
        self.is_apart = False  # cut off from the weaver and the other nodes
        self.silent_since = 0.0
        self.registered_at = 0.0
        self.boots = 0
        self.forget()

    def forget(self) -> None:
        """Begin with an empty memory: a new keeper."""
        self.boots += 1
        self.fence = Fence()
        self.processes: dict[int, Process] = {}
        self.lives: dict[int, int] = {}  # the last one of each rank
        self.forget_pages()
        self.exits: dict[
            MemberProcess, Exited | ForkFailed
        ] = {}  # that the weaver has not stored yet

    def forget_pages(self) -> None:
        self.world.excused |= set(getattr(self, "pages", {}))
        self.pages: dict[int, dict[int, tuple[int, Own]]] = {}
        self.copies: dict[int, Copies] = {}

    @property
    def is_heard(self) -> bool:
        return self.is_up and self.has_agent and not self.is_apart

    # The agent.

    def say(self, word: Any) -> None:
        """Carry a rank's word; without an agent it is lost."""
        if self.is_up and self.has_agent:
            self.world.to_weavers(self, word)

    def register(self) -> None:
        if not self.is_heard:
            return
        self.registered_at = self.world.clock.now
        lives = tuple(process.who for process in self.processes.values())
        self.world.to_weavers(self, (Registered(self.name, lives), self.boots))
        self.tell_exits()

    def tell_exits(self) -> None:
        for word in self.exits.values():
            self.say(word)

    def receive(self, epoch: int, boots: int, mode: RecoveryMode, order: Send | Stored) -> None:
        """Carry out what a weaver orders, unless a newer weaver or generation is known.

        What was said to the keeper before is not heard by this one.
        """
        if not self.is_heard or boots != self.boots:
            return
        message = order.message if isinstance(order, Send) else None
        is_of_one = message is not None and not isinstance(message, EndProcess)
        generation = message.head.generation if is_of_one else self.fence.generation
        self.fence, is_admitted = self.world.laws.admit(self.fence, epoch, generation)
        if not is_admitted:
            self.world.cover("branch", "fenced")
            return
        match message:
            case None:
                self.exits.pop(order.who, None)
            case MakeStore():
                self.world.stores.add(generation)
                self.say(StoreMade(generation))
            case Fork():
                self.fork(MemberProcess(message.rank, message.life, message.node), generation, mode)
            case EndProcess():
                self.kill(order.who)
            case _:
                process = self.processes.get(order.who.rank)
                if process is not None and process.who == order.who:
                    process.receive(message)

    def fork(self, who: MemberProcess, generation: int, mode: RecoveryMode) -> None:
        """Start a process unless this life was started, or ended, before."""
        last = self.lives.get(who.rank, 0)
        if who.life <= last:
            self.say_exit_again(who)
            return
        if not inherits(last, who.life):
            self.world.excused.add(who.rank)
            self.pages.pop(who.rank, None)
            self.copies.pop(who.rank, None)
        stray = self.processes.get(who.rank)
        if stray is not None:  # of a weaver that is no more
            self.ended(stray, -9)
        self.lives[who.rank] = who.life
        if self.world.fails_to_fork():
            self.exits[who] = ForkFailed(who, "no memory")
            self.say(self.exits[who])
            return
        self.processes[who.rank] = Process(self.world, self, who, generation, mode)
        self.world.clock.note("forked", self.processes[who.rank])

    def kill(self, who: MemberProcess) -> None:
        process = self.processes.get(who.rank)
        if process is not None and process.who == who:
            self.world.checks.killed(process)
            self.ended(process, -9)
        elif who.life > self.lives.get(who.rank, 0):  # never started, and never will be
            self.lives[who.rank] = who.life
            self.exits[who] = Exited(who, -9)
            self.say(self.exits[who])
        else:
            self.say_exit_again(who)

    def say_exit_again(self, who: MemberProcess) -> None:
        process = self.processes.get(who.rank)
        if process is None or process.who != who:
            self.exits.setdefault(who, Exited(who, -9))
            self.say(self.exits[who])

    # The keeper.

    def ended(self, process: Process, code: int) -> None:
        """A process is no more."""
        self.world.clock.note(process, "ended with", code)
        self.gone(process)
        self.exits[process.who] = Exited(process.who, code, process.applied or 0)
        self.world.clock.soon(self.say, self.exits[process.who])

    def gone(self, process: Process) -> None:
        del self.processes[process.rank]
        was_training = process.is_training
        process.turn += 1
        process.phase = "dead"
        if was_training:
            self.world.group(process.generation).leave(process)

    def pages_of(self, rank: int) -> frozenset[int]:
        return frozenset(step for step, _ in self.pages.get(rank, {}).values())

    def put_page(self, rank: int, step: int, own: Own) -> None:
        self.pages.setdefault(rank, {})[self.world.laws.slot_of(step)] = (step, own)

    def page(self, rank: int, step: int) -> Own | None:
        """Return what is in the slot of a step, whatever that is."""
        found = self.pages.get(rank, {}).get(self.world.laws.read_slot_of(step))
        return found[1] if found else None

    def copies_of(self, rank: int) -> frozenset[tuple[int, int]]:
        return frozenset(self.copies.get(rank, {}))

    def put_copy(self, holder: int, whose: int, step: int, part: Part) -> None:
        self.copies.setdefault(holder, {})[whose, step] = part

    def newest_held(self, rank: int, ranks: int) -> int:
        """Return the newest step of which this rank has its own copy and its neighbour's."""
        held = self.copies.get(rank, {})
        before = (rank - 1) % ranks
        return max((s for w, s in held if w == rank and (before, s) in held), default=-1)

    def drop_copies(self, rank: int, newer_than: int = 1 << 30, older_than: int = -1) -> None:
        held = self.copies.get(rank)
        if held:
            kept = {key: part for key, part in held.items() if older_than <= key[1] <= newer_than}
            self.copies[rank] = kept
