"""Ranks as they are at step boundaries, and the store of a generation, without time or network."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torchloom.messages.base import VERSION, Head
from torchloom.messages.plane import Applied, Decided, RankRefusal, Ready
from torchloom.rules.control.command import Abort, CommandEntry, CommandKind, Outcome, schedule
from torchloom.rules.control.events import CommandReport

WAIT = 0.25
Offer = tuple[str, int]
HEAD = Head(VERSION, "job", 0, 0, "")  # rules look at nothing in it


@dataclass
class Store:
    """The entries of one generation: the first writer of each wins."""

    entries: dict[str, Outcome] = field(default_factory=dict)

    def compare_set(self, key: str, outcome: Outcome) -> Outcome:
        return self.entries.setdefault(key, outcome)


@dataclass
class Rank:
    """One rank in one generation: what it promised, what it knows, what it did."""

    rank: int
    store: Store
    step: int  # it is in this one
    k: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    pending: dict[Offer, tuple[CommandEntry, int]] = field(default_factory=dict)
    known: dict[Offer, Outcome] = field(default_factory=dict)
    ahead: list[CommandEntry] = field(default_factory=list)
    done: dict[str, CommandReport] = field(default_factory=dict)
    resumed: int = 0  # pauses with a lower number are lifted
    pause: CommandEntry | None = None
    waited: float = 0.0
    silent: bool = False  # its threadlet does not answer

    def prepare(self, entry: CommandEntry) -> CommandReport:
        offer = (entry.id, entry.offer)
        if offer in self.known:
            return self.decided(*offer)
        if entry.command.payload.get("bad") == self.rank:
            return CommandReport(self.rank, RankRefusal(HEAD, entry.offer_id, "bad value"))
        if entry.command.kind.is_aligned and offer not in self.pending:
            self.pending[offer] = (entry, self.step + 1 + self.k)
        limit = self.pending[offer][1] if offer in self.pending else self.step + 1
        step = limit - 1 - self.k
        return CommandReport(self.rank, Ready(HEAD, entry.offer_id, step, self.k))

    def write(self, entry: CommandEntry, outcome: Outcome) -> CommandReport:
        """Write the outcome unless there is one, and obey what is there."""
        offer = (entry.id, entry.offer)
        winner = self.known.get(offer) or self.store.compare_set(entry.key, outcome)
        self.obey(entry, winner)
        return self.decided(*offer)

    def decided(self, command: str, offer: int) -> CommandReport:
        outcome = self.known[command, offer]
        effective = None if isinstance(outcome, Abort) else outcome.step or 0
        return CommandReport(self.rank, Decided(HEAD, f"{command}/{offer}", effective))

    def obey(self, entry: CommandEntry, outcome: Outcome) -> CommandReport | None:
        """Take in an outcome; one that is known already is only answered."""
        offer = (entry.id, entry.offer)
        if self.known.setdefault(offer, outcome) != outcome:
            assert {type(outcome), type(self.known[offer])} == {Abort}, "split"
        self.pending.pop(offer, None)
        if entry.id in self.done:
            return self.done[entry.id]
        if isinstance(outcome, Abort) or any(e.id == entry.id for e in self.ahead):
            return None
        if outcome.step is None:
            return self.act_at_once(entry)
        assert outcome.step > self.step, f"rank {self.rank} has passed step {outcome.step}"
        if entry.command.kind is not CommandKind.PAUSE or entry.number > self.resumed:
            self.ahead.append(entry_at(entry, outcome.step))
        return None

    def act_at_once(self, entry: CommandEntry) -> CommandReport:
        if entry.command.kind is CommandKind.RESUME:
            self.resumed = entry.number
            self.ahead = [e for e in self.ahead if not lifts(entry, e)]
            if self.pause and lifts(entry, self.pause):
                self.pause = None
        self.done[entry.id] = self.applied(entry, self.step)
        return self.done[entry.id]

    def boundary(self) -> list[CommandReport]:
        """Start the next step, unless paused or held by a promise; return what acted before it."""
        coming = self.step + 1
        if self.pause or self.is_held():
            return []
        now = sorted((e for e in self.ahead if e.step == coming), key=lambda e: e.number)
        acts = [self.act(entry) for entry in now]
        if not self.pause:
            self.step = coming
        return acts

    def act(self, entry: CommandEntry) -> CommandReport:
        assert entry.id not in self.done, "twice in one generation"
        before = {name: self.values.get(name) for name in entry.command.payload}
        if entry.command.kind is CommandKind.PAUSE:
            self.pause = entry
        if entry.command.kind is CommandKind.KNOB:
            self.values.update(entry.command.payload)
        self.ahead.remove(entry)
        after = dict(entry.command.payload)
        self.done[entry.id] = self.applied(entry, self.step + 1, before, after)
        return self.done[entry.id]

    def applied(self, entry: CommandEntry, step: int, *values: Any) -> CommandReport:
        return CommandReport(self.rank, Applied(HEAD, entry.offer_id, step, *values))

    def is_held(self) -> bool:
        return any(limit <= self.step + 1 for _, limit in self.pending.values())

    def wait(self, seconds: float) -> list[CommandReport]:
        """Wait at a limit; after 250 ms write `abort` and obey whichever entry won."""
        self.waited = self.waited + seconds if self.is_held() and not self.pause else 0.0
        if self.waited < WAIT:
            return []
        held = [entry for entry, limit in self.pending.values() if limit <= self.step + 1]
        self.waited = 0.0
        return [self.write(entry, Abort("no outcome in time")) for entry in held]

    def leave(self) -> list[CommandReport]:
        """The generation is over: settle every promise by the store, and tell what is known."""
        for entry, _ in list(self.pending.values()):
            self.write(entry, Abort("no outcome in time"))
        return [self.decided(*offer) for offer in self.known]


def lifts(resume: CommandEntry, other: CommandEntry) -> bool:
    return other.command.kind is CommandKind.PAUSE and other.number < resume.number


def entry_at(entry: CommandEntry, step: int) -> CommandEntry:
    return replace(entry, step=step, acks={}, why="")


def upcoming(audit: Iterable[CommandEntry], step: int) -> tuple[CommandEntry, ...]:
    """Return the knob changes that act after this step, in the order in which they do."""
    return tuple(e for e in schedule(audit) if e.step is not None and e.step > step)


def desired(audit: Iterable[CommandEntry], step: int) -> dict[str, Any]:
    """Return the knob values in force in a step, as far as commands have set them."""
    values: dict[str, Any] = {}
    for entry in schedule(audit):
        if entry.step is not None and entry.step <= step:
            values.update(entry.command.payload)
    return values
