"""The collectives of one generation: all-reduces that end rank by rank, or break."""

from typing import TYPE_CHECKING

from . import model

if TYPE_CHECKING:
    from .process import Process
    from .world import World


class Group:
    """The connections of the members of a generation, made under its store."""

    def __init__(self, world: "World", generation: int) -> None:
        self.world = world
        self.generation = generation
        self.members: dict[int, Process] = {}
        self.given: dict[int, dict[int, int]] = {}  # gradients, by step and rank
        self.holds: dict[int, dict[int, int]] = {}  # the newest copy that each rank has, by step
        self.is_broken = False

    def join(self, process: "Process") -> None:
        self.members[process.who.rank] = process

    def give(self, process: "Process", step: int, gradient: int, copy: int) -> None:
        """Take one rank's gradient; with all of them, each gets the result in its own time."""
        rank = process.who.rank
        if self.is_broken or self.world.is_cut(process):
            self._fail(process)
            return
        given = self.given.setdefault(step, {})
        given[rank] = gradient
        self.holds.setdefault(step, {})[rank] = copy
        if len(given) == self.world.setting.ranks:
            mean = self.world.clock.rng.choice((0.002, 0.002, 0.008))
            for one in self.members.values():
                self.world.clock.soon(self._deliver, one, one.turn, step, mean=mean)

    def _deliver(self, process: "Process", turn: int, step: int) -> None:
        if process.turn != turn:
            return
        if process.is_stopped or self.world.is_apart(self.members.values()):
            self.world.clock.after(0.2, self._deliver, process, turn, step)
            return
        reduced = model.reduce(self.given[step])
        process.reduced(reduced, min(self.holds[step].values()))

    def leave(self, process: "Process") -> None:
        """Break for all whose result has not come: a member is dead, or closed its sockets."""
        self.is_broken = True
        for other in self.members.values():
            if other is not process and other.phase == "reduce":
                self._fail(other)

    def cut(self, process: "Process") -> None:
        """Break for one member alone."""
        if process.phase == "reduce":
            self._fail(process)

    def _fail(self, process: "Process") -> None:
        self.world.clock.soon(self._break, process, process.turn)

    def _break(self, process: "Process", turn: int) -> None:
        if process.turn != turn:
            return
        if process.is_stopped or self.world.is_apart([process]):
            self.world.clock.after(0.2, self._break, process, turn)
            return
        process.has_exception(is_collective=True, is_own=False)
