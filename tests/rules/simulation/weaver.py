"""A weaver: it feeds the rule, stores and says what the rule wants, and may die at any point."""

import json
from typing import TYPE_CHECKING, Any

from torchloom.rules.membership.events import (
    CheckpointSaved,
    Exited,
    ForkFailed,
    GivenUp,
    MemberNodeLost,
    Registered,
    Seal,
    Tick,
)
from torchloom.rules.membership.generation import (
    GenerationPhase,
    StoreGeneration,
    record_from_dict,
    record_to_dict,
)
from torchloom.rules.membership.live_recovery import restore

from .node import Node, Stored

if TYPE_CHECKING:
    from .world import World

SILENCE = 2.0  # of a node, after which it is lost
HANG = 10.0  # of a process
REGISTER = 2.0  # agents say again what they have
LOOK = 0.25
REST = 1.0  # between two looks when nothing has come for a while


class Weaver:
    """One life of the weaver; a zombie is one that does not know that there is a newer one."""

    def __init__(self, world: "World") -> None:
        self.world = world
        world.epoch += 1
        self.epoch = world.epoch
        self.is_up = True
        self.fuse: int | None = None  # effects that it lives to see
        self.began_at = self.heard_at = world.clock.now
        stored = record_from_dict(json.loads(json.dumps(record_to_dict(world.record))))
        assert stored == world.record, "what is stored is not what is read"
        self.state = restore(world.first, stored, world.clock.now)
        world.clock.after(0.0, self.look)

    @property
    def is_newest(self) -> bool:
        return self.epoch == self.world.epoch

    def look(self) -> None:
        """Let time pass, and notice what makes no noise."""
        if not self.is_up:
            return
        now = self.world.clock.now
        self.feed(Tick(now))
        for node in self.world.nodes.values():
            if not self.is_up:
                return
            since = max(node.silent_since, self.began_at)
            if not node.is_heard and now - since > SILENCE:
                if node.name not in self.state.record.lost:
                    self.feed(MemberNodeLost(node.name))
            elif node.is_heard and node.name in self.state.record.lost:
                node.register()
            if node.is_heard:
                node.tell_exits()
                if now - node.registered_at > REGISTER:
                    node.register()
        for process in self.world.stopped(HANG):
            self.world.to_weaver(self, GivenUp(process.who, f"hang_rank_{process.rank}"))
        latest = self.world.storage.latest()
        if latest is not None and latest != self.state.record.checkpoint:
            self.world.to_weaver(self, CheckpointSaved(latest))
        is_quiet = now - self.heard_at > 3.0
        self.world.clock.after(REST if is_quiet else LOOK, self.look)

    def hear(self, node: Node, word: Any) -> None:
        """Take in what a node says; what it keeps until it is stored is acknowledged."""
        if not self.is_up:
            return
        self.heard_at = self.world.clock.now
        match word:
            case (Registered() as registered, boots):
                is_fresh = self.world.boots.get(node.name, 1) != boots
                lives = registered.lives
                self.feed(Registered(node.name, lives, is_fresh))
                if self.is_up and self.is_newest:
                    self.world.boots[node.name] = boots
            case _:
                self.feed(word)
        if self.is_up and isinstance(word, Exited | ForkFailed):
            self.world.to_node(self, node.name, Stored(word.who))

    def feed(self, event: Any) -> None:
        if not self.is_up:
            return
        self.world.cover_event(self, event)
        self.state, effects = self.world.laws.step(self.state, event)
        for effect in effects:
            if self.fuse is not None:
                self.fuse -= 1
                if self.fuse < 0:
                    self.world.weaver_dies(self)
                    return
            self.carry_out(effect)
            if not self.is_up:
                return

    def carry_out(self, effect: Any) -> None:
        world = self.world
        match effect:
            case StoreGeneration():
                if not self.is_newest:  # the database refuses it: it knows a newer epoch
                    world.weaver_dies(self)
                    return
                world.checks.stores(world.record, effect.record)
                world.record = effect.record
                for told in effect.changes:
                    world.clock.note("weaver", self.epoch, told)
                    world.told(told)
            case Seal():
                world.to_storage(self, effect)
            case _:
                world.to_node(self, effect.who.node, effect)

    @property
    def is_at_end(self) -> bool:
        return self.state.record.phase in (GenerationPhase.COMPLETE, GenerationPhase.FAILED)
