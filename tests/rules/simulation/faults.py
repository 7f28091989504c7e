"""What goes wrong, and how: one method a kind of fault."""

from typing import TYPE_CHECKING

from torchloom.rules.membership.events import GivenUp, StoreLost
from torchloom.rules.membership.seats import MemberProcess

if TYPE_CHECKING:
    from .process import Process
    from .world import World

NEVER = 1e6  # seconds: longer than any run
ECHOES = (0.002, 0.006, 0.02, 0.06, 0.2, 0.6)
LASTING = frozenset(
    {
        "doom",
        "raise_always",
        "bad_prologues",
        "slow_prologue",
        "cut_link_long",
        "lose_host",
        "corrupt",
    }
)


class Faults:
    """The faults of one run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = world.clock.rng
        self.is_stormy = False
        self.charges: dict[str, int] = {}  # what will go wrong at the next occasion
        self.cuts: dict[tuple[int, int], float] = {}  # until when, by the two ranks
        self.exceptions: dict[tuple[int, int], str] = {}  # by rank and step
        self.struck: list[str] = []
        self.doomed: set[MemberProcess] = set()  # whose devices are broken

    def strike(self, kind: str) -> None:
        self.world.clock.note("FAULT", kind)
        self.world.cover("fault", kind)
        self.struck.append(kind)
        getattr(self, kind)()

    # Processes.

    def _victims(self) -> list["Process"]:
        return self.world.members()

    def _kill(self, process: "Process") -> None:
        process.node.ended(process, -9)

    def kill(self) -> None:
        if victims := self._victims():
            self._kill(self.rng.choice(victims))

    def kill_source(self) -> None:
        if victims := self._victims():
            self._kill(max(victims, key=lambda p: -1 if p.applied is None else p.applied))

    def kill_first(self) -> None:
        if victims := self._victims():
            self._kill(victims[0])

    def kill_two(self) -> None:
        victims = self._victims()
        for process in self.rng.sample(victims, min(2, len(victims))):
            self._kill(process)

    def kill_all(self) -> None:
        for process in self._victims():
            self._kill(process)

    def stop(self) -> None:
        if victims := [p for p in self._victims() if not p.is_stopped]:
            process = self.rng.choice(victims)
            process.is_stopped, process.stopped_at = True, self.world.clock.now
            self.world.has_seen_stop = True
            if self.rng.random() < 0.4:
                self.world.clock.after(self.rng.choice((0.02, 1.0, 5.0)), self._resume, process)

    def _resume(self, process: "Process") -> None:
        if process.is_stopped and process.phase != "dead":
            process.resume()

    def _raise(self, how: str) -> None:
        rank = self.rng.randrange(self.world.setting.ranks)
        process = self.world.member(rank)
        step = (process.applied or 0 if process else 0) + self.rng.randrange(3)
        self.exceptions[rank, step] = how

    def exception_in(self, rank: int, step: int) -> str:
        how = self.exceptions.get((rank, step), "")
        if how and how != "always":
            del self.exceptions[rank, step]
        return how

    def raise_like_a_peer(self) -> None:
        self._raise("like_a_peer")

    def raise_always(self) -> None:
        self._raise("always")

    def quit(self) -> None:
        self._raise("quit")

    def bad_fork(self) -> None:
        self.charges["bad_fork"] = self.rng.choice((1, 1, 2))

    def bad_prologue(self) -> None:
        self.charges["bad_prologue"] = self.rng.choice((1, 2))

    def bad_prologues(self) -> None:
        self.charges["bad_prologue"] = self.rng.choice((6, 9, 40))

    def doom(self) -> None:
        """End all, and let nobody come back."""
        self.charges["bad_prologue"] = 200
        self.kill_all()

    def slow_prologue(self) -> None:
        self.charges["slow_prologue"] = self.rng.choice((1, 2, 9))

    def corrupt(self) -> None:
        self.charges["corrupt"] = self.rng.choice((1, 1, 2, 8))

    def takes(self, kind: str) -> bool:
        """Tell whether this occasion goes wrong."""
        left = self.charges.get(kind, 0)
        self.charges[kind] = max(0, left - 1)
        return left > 0

    def prologue(self) -> tuple[float, int]:
        """Return how long a program's set-up takes, and with which code it fails."""
        seconds = self.world.setting.prologue * (0.5 + self.rng.random())
        if self.takes("slow_prologue"):
            seconds = self.rng.choice((20.0, 70.0, 130.0, NEVER))
        return seconds, int(self.takes("bad_prologue"))

    # Hosts.

    def lose_host(self) -> None:
        self._lose_host(self.rng.choice((4.0, 30.0, NEVER)))

    def reboot_host(self) -> None:
        self._lose_host(0.5)

    def _lose_host(self, seconds: float) -> None:
        node = self.rng.choice([n for n in self.world.nodes.values() if n.is_up] or [None])
        if node is None:
            return
        node.is_up, node.silent_since = False, self.world.clock.now
        for process in list(node.processes.values()):
            node.gone(process)
        node.forget()
        self.world.clock.after(seconds, self._boot, node)

    def _boot(self, node: object) -> None:
        node.is_up, node.has_agent = True, True  # type: ignore[attr-defined]
        node.register()  # type: ignore[attr-defined]

    def lose_keeper(self) -> None:
        """The kernel ends the ranks of a keeper that dies; its memory is gone, too."""
        node = self.rng.choice(list(self.world.nodes.values()))
        for process in list(node.processes.values()):
            self._kill(process)
        node.forget_pages()

    def partition(self) -> None:
        node = self.rng.choice(list(self.world.nodes.values()))
        if not node.is_apart:
            node.is_apart, node.silent_since = True, self.world.clock.now
            self.world.clock.after(self.rng.choice((0.1, 1.0, 3.0, 8.0)), self._join, node)

    def _join(self, node: object) -> None:
        node.is_apart = False  # type: ignore[attr-defined]
        node.register()  # type: ignore[attr-defined]

    def kill_agent(self) -> None:
        node = self.rng.choice(list(self.world.nodes.values()))
        if node.has_agent:
            node.has_agent, node.silent_since = False, self.world.clock.now
            self.world.clock.after(self.rng.choice((0.05, 0.5, 1.5, 4.0)), self._agent, node)

    def _agent(self, node: object) -> None:
        node.has_agent = True  # type: ignore[attr-defined]
        node.register()  # type: ignore[attr-defined]

    # The weaver.

    def kill_weaver(self) -> None:
        if self.world.weavers:
            self.world.weaver_dies(self.world.weavers[-1])

    def fuse_weaver(self) -> None:
        """Have the weaver die between two effects, soon."""
        if self.world.weavers:
            self.world.weavers[-1].fuse = self.rng.randrange(12)

    def zombie_weaver(self) -> None:
        """Start a weaver while the old one is still there, and does not know it."""
        if len(self.world.weavers) == 1 and self.world.weavers[0].is_newest:
            zombie = self.world.weavers[0]
            self.world.weaver_comes()
            self.world.clock.after(self.rng.choice((0.05, 0.5, 3.0)), self._zombie_ends, zombie)

    def _zombie_ends(self, zombie: object) -> None:
        if zombie in self.world.weavers:
            self.world.weavers.remove(zombie)  # type: ignore[arg-type]
            zombie.is_up = False  # type: ignore[attr-defined]

    # The network, and what is reached over it.

    def kill_store(self) -> None:
        for weaver in list(self.world.weavers):
            self.world.to_weaver(weaver, StoreLost(self.world.record.generation))

    def echo(self) -> None:
        """Bring the last word of each kind once more, however late that is."""
        for weaver in list(self.world.weavers):
            for event in self.world.last.values():
                self.world.to_weaver(weaver, event)

    def kill_with_echoes(self) -> None:
        self.kill()
        for seconds in ECHOES:
            self.world.clock.after(seconds, self.echo)

    def kill_all_with_echoes(self) -> None:
        self.kill_all()
        for seconds in ECHOES:
            self.world.clock.after(seconds, self.echo)

    def fail_device(self) -> None:
        """Have somebody who watches devices say that a rank's is broken."""
        seat = self.rng.choice(self.world.record.seats)
        self.doomed.add(seat.who)
        for weaver in list(self.world.weavers):
            self.world.to_weaver(weaver, GivenUp(seat.who, "device_failed"))

    def cut_link(self) -> None:
        self._cut(self.rng.choice((0.005, 0.05)))

    def cut_link_long(self) -> None:
        self._cut(self.rng.choice((4.0, 80.0, NEVER)))

    def _cut(self, seconds: float) -> None:
        victims = self._victims()
        if len(victims) < 2:
            return
        for process in self.rng.sample(victims, 2):
            self.cuts[process.rank, 0] = self.world.clock.now + seconds
            if process.is_training:
                self.world.group(process.generation).cut(process)

    def is_cut(self, process: "Process") -> bool:
        return self.cuts.get((process.rank, 0), 0.0) > self.world.clock.now

    def storm(self) -> None:
        self.is_stormy = True

    def calm(self) -> None:
        self.is_stormy = False

    def network(self) -> tuple[float, float]:
        setting = self.world.setting
        if self.is_stormy:
            return 0.5, 0.5
        return setting.loss, setting.twice


def _raise_once(self: Faults) -> None:
    self._raise("once")


setattr(Faults, "raise", _raise_once)  # a word of the language
