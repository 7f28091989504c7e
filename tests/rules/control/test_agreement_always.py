"""Whoever dies and whatever is lost: ranks of a generation agree, and no command is forgotten."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from torchloom.messages.plane import Applied
from torchloom.rules.control.agreement import DELAYS, State, restore, step
from torchloom.rules.control.command import (
    Command,
    CommandEntry,
    CommandKind,
    CommitAt,
    Status,
    offer_of,
)
from torchloom.rules.control.events import (
    Asked,
    AskWrite,
    BoundaryReached,
    CommandDone,
    CommandReport,
    CommandTick,
    Effect,
    Event,
    Generation,
    RankGone,
    SendOutcome,
    SendPrepare,
    StoreCommand,
)

from ..model_ranks import WAIT, Rank, Store, desired, upcoming

KINDS = [
    CommandKind.KNOB,
    CommandKind.KNOB,
    CommandKind.KNOB,
    CommandKind.CHECKPOINT,
    CommandKind.PAUSE,
    CommandKind.RESUME,
]


class World(RuleBasedStateMachine):
    """Ranks, a weaver that may die between any two effects, and a network that loses things."""

    @initialize(ks=st.lists(st.integers(0, 3), min_size=3, max_size=5), is_api=st.booleans())
    def begin(self, ks: list[int], is_api: bool) -> None:
        self.ks, self.is_api = ks, is_api
        self.rows: dict[str, CommandEntry] = {}
        self.state: State | None = State()
        self.fuse: int | None = None  # effects that the weaver still lives to see
        self.now = 0.0
        self.asked: dict[str, Command] = {}
        self.answers: dict[str, CommandEntry] = {}
        self.stores: list[Store] = []
        self.acts: dict[tuple[int, str], set[int]] = {}  # steps, by generation and command
        self.to_ranks: list[tuple[int, int, SendPrepare | AskWrite | SendOutcome]] = []
        self.to_weaver: list[tuple[int, Event]] = []  # may be lost
        self.spool: list[Event] = []  # agents keep these until they are stored
        self.ranks: list[Rank] = []
        self.generation, self.start = 0, 1
        self.is_begun = False
        self.begin_generation()

    # The weaver.

    def tell(self, event: Event) -> None:
        if self.state is None:
            return
        self.state, effects = step(self.state, event)
        for effect in effects:
            if self.fuse == 0:
                self.state, self.fuse = None, None
                return
            self.fuse = None if self.fuse is None else self.fuse - 1
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case StoreCommand():
                self.rows[effect.entry.id] = effect.entry
            case CommandDone():
                self.answered(effect.entry)
            case AskWrite():
                self.to_ranks.append((self.generation, effect.rank, effect))
            case SendPrepare() | SendOutcome():
                assert effect.ranks, "said to nobody"
                for rank in sorted(effect.ranks):
                    self.to_ranks.append((self.generation, rank, effect))

    def answered(self, entry: CommandEntry) -> None:
        if entry.id in self.answers:
            assert self.answers[entry.id] == entry, "two answers to one command"
            return
        self.answers[entry.id] = entry
        if entry.step is not None and not entry.why:
            assert {ack.step for ack in entry.acks.values()} == {entry.step}
        if entry.acks and not entry.why:
            assert all(entry.id in rank.done for rank in self.ranks), "not done in this generation"

    def come_back(self) -> None:
        """Read what was stored; agents say again what they know."""
        self.state = restore(self.rows.values())
        self.tell(CommandTick(self.now))
        if not self.is_begun:
            self.begin_generation()
            return
        self.tell(Generation(self.generation, frozenset(range(len(self.ranks))), self.start))
        for rank in self.ranks:
            self.say_boundary(rank)
        self.flush()

    def flush(self) -> None:
        while self.spool and self.state is not None:
            self.tell(self.spool[0])
            if self.state is not None:
                self.spool.pop(0)

    def say_boundary(self, rank: Rank) -> None:
        if rank.step >= self.start:
            self.tell(BoundaryReached(rank.rank, self.is_api))

    # A generation.

    def begin_generation(self) -> None:
        """Survivors' words first; then all members get what stands together with their step."""
        self.flush()
        members = frozenset(range(len(self.ks)))
        self.to_ranks.clear()
        self.tell(Generation(self.generation, members, self.start))
        if self.state is None:
            return  # died over it: the one who comes back begins it
        self.is_begun = True
        audit = self.state.audit
        self.stores.append(Store())
        self.ranks = [Rank(i, self.stores[-1], self.start - 1, k) for i, k in enumerate(self.ks)]
        for rank in self.ranks:
            rank.values = desired(audit, self.start - 1)
            rank.ahead = list(upcoming(audit, self.start - 1))
            assert {e.command.kind for e in rank.ahead} <= {CommandKind.KNOB}, (
                "replayed what acts once"
            )
        opening, self.to_ranks = self.to_ranks, []
        for _, index, said in opening:
            self.receive(self.ranks[index], said)

    def receive(self, rank: Rank, said: SendPrepare | AskWrite | SendOutcome) -> None:
        match said:
            case SendPrepare():
                self.to_weaver.append((self.generation, rank.prepare(said.entry)))
            case AskWrite():
                self.to_weaver.append((self.generation, rank.write(said.entry, said.outcome)))
            case SendOutcome():
                applied = rank.obey(said.entry, said.outcome)
                self.spool += [applied] if applied else []

    # What may happen.

    @rule(kind=st.sampled_from(KINDS), wish=st.none() | st.integers(1, 8), bad=st.integers(0, 15))
    def somebody_asks(self, kind: CommandKind, wish: int | None, bad: int) -> None:
        name = f"c{len(self.asked)}"
        payload: dict[str, Any] = {f"knob{bad % 2}": len(self.asked)}
        if bad < 3:
            payload = {"bad": bad}
        wished = wish and max(rank.step for rank in self.ranks) + wish
        self.ask(Command(name, kind, payload, at_step=wished if kind.is_aligned else None))

    def ask(self, command: Command) -> None:
        self.asked[command.id] = command
        self.tell(Asked(command))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def somebody_asks_again(self, data: st.DataObject) -> None:
        self.tell(Asked(data.draw(st.sampled_from(list(self.asked.values())))))

    @precondition(lambda self: self.is_begun)
    @rule(data=st.data(), times=st.integers(1, 4))
    def a_rank_steps(self, data: st.DataObject, times: int) -> None:
        rank = data.draw(st.sampled_from(self.ranks))
        for _ in range(times):
            self.advance(rank)

    def advance(self, rank: Rank) -> None:
        if rank.silent:
            return
        was = rank.step
        for act in rank.boundary():
            self.acted(act)
        if was < self.start <= rank.step:
            self.say_boundary(rank)

    def acted(self, act: CommandReport) -> None:
        command, _ = offer_of(act.message.command) or ("", 0)
        steps = self.acts.setdefault((self.generation, command), set())
        assert isinstance(act.message, Applied)
        steps.add(act.message.step)
        assert len(steps) == 1, "one command before two steps"
        self.spool.append(act)

    @precondition(lambda self: self.is_begun)
    @rule()
    def all_step(self) -> None:
        for rank in self.ranks:
            self.advance(rank)

    @precondition(lambda self: self.to_ranks or self.to_weaver)
    @rule(data=st.data(), fate=st.sampled_from(["comes", "comes", "comes", "twice", "is lost"]))
    def something_said(self, data: st.DataObject, fate: str) -> None:
        index = data.draw(st.integers(0, len(self.to_ranks) + len(self.to_weaver) - 1))
        self.deliver(index, fate)

    def deliver(self, index: int, fate: str = "comes") -> None:
        if index < len(self.to_ranks):
            generation, number, said = self.to_ranks[index]
            if generation == self.generation and self.is_begun and self.ranks[number].silent:
                return
            if fate != "twice":
                del self.to_ranks[index]
            if fate != "is lost" and generation == self.generation and self.is_begun:
                self.receive(self.ranks[number], said)
            return
        index -= len(self.to_ranks)
        generation, event = self.to_weaver[index]
        if fate != "twice":
            del self.to_weaver[index]
        if fate != "is lost" and generation == self.generation and self.is_begun:
            self.tell(event)

    @rule(when=st.integers(0, 1))
    def all_that_was_said_is_lost(self, when: int) -> None:
        if when == 0:
            self.to_ranks.clear()
            self.to_weaver.clear()

    @rule()
    def all_is_delivered(self) -> None:
        for _ in range(len(self.to_ranks)):
            if self.to_ranks:
                self.deliver(0)
        for _ in range(len(self.to_weaver)):
            self.deliver(len(self.to_ranks))
        self.flush()

    @precondition(lambda self: self.is_begun)
    @rule(turns=st.integers(2, 8))
    def all_goes_well_for_a_while(self, turns: int) -> None:
        for _ in range(turns):
            self.all_is_delivered()
            self.all_step()
            self.time_passes(0.01)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.3, 0.9]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for rank in self.ranks if self.is_begun else ():
            if not rank.silent:
                self.to_weaver += [(self.generation, word) for word in rank.wait(seconds)]
                assert rank.waited < WAIT, "waits for ever"
        self.tell(CommandTick(self.now))

    @rule(when=st.integers(0, 3), fuse=st.integers(0, 3))
    def the_weaver_dies(self, when: int, fuse: int) -> None:
        if when == 0 and self.state is not None:
            self.fuse = fuse  # after so many effects
            self.to_weaver.clear()

    @precondition(lambda self: self.state is None)
    @rule()
    def the_weaver_comes_back(self) -> None:
        self.come_back()

    @precondition(lambda self: self.is_begun)
    @rule(data=st.data())
    def a_rank_is_stopped_or_goes_on(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.ranks))
        rank.silent = not rank.silent

    @precondition(lambda self: self.is_begun)
    @rule(data=st.data(), when=st.integers(0, 3), rolls_back=st.booleans())
    def a_rank_dies(self, data: st.DataObject, when: int, rolls_back: bool) -> None:
        if when:
            return
        dead = data.draw(st.sampled_from(self.ranks))
        newest = max(1, *(rank.step for rank in self.ranks if rank is not dead))
        self.die(dead, data.draw(st.integers(1, newest)) if rolls_back else newest)

    @precondition(lambda self: self.is_begun and self.secrets())
    @rule()
    def a_rank_writes_and_dies_with_its_secret(self) -> None:
        number, said = self.secrets()[0]
        self.ranks[number].write(said.entry, said.outcome)
        survivors = (rank.step for rank in self.ranks if rank.rank != number)
        self.die(self.ranks[number], max(1, *survivors))

    def secrets(self) -> list[tuple[int, AskWrite]]:
        """Return the outcomes that a rank of this generation was asked to write."""
        return [
            (rank, said)
            for generation, rank, said in self.to_ranks
            if generation == self.generation and isinstance(said, AskWrite)
        ]

    def die(self, dead: Rank, start: int) -> None:
        """The others settle what they promised, and go on from this step with a new one."""
        survivors = [rank for rank in self.ranks if rank is not dead]
        for rank in survivors:
            self.spool += rank.leave()
        self.start = start
        self.is_begun = False
        self.tell(RankGone(dead.rank))
        self.generation += 1
        self.begin_generation()

    # What must hold in the end.

    def teardown(self) -> None:
        """With a weaver that stays and a network that works, everything comes to its end."""
        if not hasattr(self, "state"):
            return
        self.fuse = None
        if self.state is None:
            self.come_back()
        for command in self.asked.values():
            self.tell(Asked(command))  # it may have died before it stored them
        for rank in self.ranks:
            rank.silent = False
        for turn in range(400):
            if self.is_quiet() and not any(rank.pause for rank in self.ranks):
                break
            self.all_is_delivered()
            self.time_passes(0.1)
            self.all_step()
            if turn % 20 == 19 and any(rank.pause for rank in self.ranks):
                self.ask(Command(f"go{turn}", CommandKind.RESUME))
        assert self.is_quiet(), "something is never decided"
        self.check_outcomes()
        self.check_values()

    def is_quiet(self) -> bool:
        assert self.state is not None
        return not (self.state.queue or self.state.standing or self.spool)

    def commits(self) -> dict[str, int]:
        """Return the step of each command, as the stores of all generations have it."""
        found: dict[str, int] = {}
        for store in self.stores:
            for key, outcome in store.entries.items():
                if isinstance(outcome, CommitAt):
                    name = key.split("/")[1]
                    assert name not in found, "committed twice"
                    found[name] = outcome.step or 0
        return found

    def aborts(self, name: str) -> int:
        keys = [key for store in self.stores for key in store.entries]
        return sum(key.startswith(f"command/{name}/") for key in keys)

    def check_outcomes(self) -> None:
        commits = self.commits()
        for name, command in self.asked.items():
            entry = self.rows[name]
            assert entry.status.is_final, "no outcome"
            if command.kind.is_aligned:
                assert (entry.status is Status.APPLIED) == (name in commits)
                assert entry.step == commits.get(name)
            if not command.kind.is_replayed and entry.acks and not entry.why:
                last = max((number for number, act in self.acts if act == name), default=0)
                assert entry.generation >= last, "done again after it was done"
            if entry.status is Status.APPLIED and command.kind is not CommandKind.RESUME:
                has_acted = any(act == name for _, act in self.acts)
                assert has_acted or entry.why.startswith("lifted"), "lost after it was committed"
            if entry.status is Status.ABORTED and command.kind.is_aligned:
                assert self.aborts(name) > len(DELAYS), "given up too early"
            if entry.status is Status.REFUSED:
                assert "bad" in command.payload or entry.why.startswith(("not al", "step"))

    def check_values(self) -> None:
        """What each rank has is what the stores say, in the order of steps and commands."""
        commits = self.commits()
        numbers = {name: row.number for name, row in self.rows.items()}
        order = sorted(commits, key=lambda name: (commits[name], numbers[name]))
        for rank in self.ranks:
            values: dict[str, Any] = {}
            for name in order:
                if self.asked[name].kind is CommandKind.KNOB and commits[name] <= rank.step:
                    values.update(self.asked[name].payload)
            assert rank.values == values


TestWhoeverDies = World.TestCase
TestWhoeverDies.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
