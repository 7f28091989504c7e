"""Carry out what follows from an event: all of it is stored in one transaction, then it is said."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torchloom.rules.escalation import Limits
from torchloom.rules.live import is_quiet
from torchloom.rules.regroup import Began, Commit, Event, Tick
from torchloom.weaver.commands import Commands
from torchloom.weaver.regrouping.deciding import Decision, decide
from torchloom.weaver.regrouping.saying import Saying
from torchloom.weaver.regrouping.telling import Telling
from torchloom.weaver.regrouping.watched import Watched, read_back
from torchloom.weaver.reports import Reports
from torchloom.weaver.shelf import Shelf
from torchloom.weaver.store import StateStore, rows
from torchloom.weaver.store.rows import Rank

AGAIN = 0.5  # seconds after which a launch process that has not answered is told again

Gone = tuple[Rank, str]  # a rank whose life is over, and why


class Carrying:
    """The attempts that are watched, as stored; time passes only where something waits for it."""

    def __init__(
        self,
        state: StateStore,
        reports: Reports,
        commands: Commands,
        shelf: Shelf,
        saying: Saying,
        telling: Telling,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._reports = reports
        self._commands = commands
        self._shelf = shelf
        self._saying = saying
        self._telling = telling
        self._clock = clock
        self._watched: dict[str, Watched] = {}
        self._busy: set[str] = set()
        for row in state.find(rows.Regrouping):
            self._keep(read_back(row, limits, clock()))

    def get(self, job: str) -> Watched | None:
        return self._watched.get(job)

    def all(self) -> list[Watched]:
        return list(self._watched.values())

    @property
    def waiting(self) -> frozenset[str]:
        """Return the jobs in which something is unanswered: only they are looked at by a clock."""
        return frozenset(self._busy)

    def begin(self, one: Watched) -> None:
        """Watch an attempt from now on."""
        one.state = replace(one.state, now=self._clock())
        with self._state.together():
            self._state.put(one.row())
            self._telling.begins(one)
        self._keep(one)
        self._tell_launch(one)

    def answered(self, one: Watched) -> None:
        """Note that a launch process has said something since it was told how it stands."""
        if one.said_at is not None:
            one.is_due = False
            self._keep(one)

    def feed(self, one: Watched, events: Iterable[Event], gone: Sequence[Gone] = ()) -> None:
        """Take in what happened, with the ranks that are known to be gone by it."""
        if is_quiet(one.state):  # no tick has told it the time
            one.state = replace(one.state, now=self._clock())
        decision = decide(one.state, events, lambda: self._saved(one.job))
        one.state = decision.state
        if decision.is_news or gone:
            with self._state.together():
                self._store(one, decision, gone)
        self._follow(one, decision)

    def tick(self) -> None:
        """Let time pass."""
        now = self._clock()
        for job in list(self._busy):
            one = self._watched[job]
            is_time = one.said_at is None or now - one.said_at >= AGAIN
            if is_time and (one.is_due or one.is_restarting):
                self._tell_launch(one)
            if not one.is_restarting and not is_quiet(one.state):
                self.feed(one, [Tick(now)])

    def drop(self, job: str) -> None:
        """Know no more of an attempt."""
        self._state.remove(rows.Regrouping, job=job)
        del self._watched[job]
        self._busy.discard(job)

    def _store(self, one: Watched, decision: Decision, gone: Sequence[Gone]) -> None:
        for rank, reason in gone:
            self._reports.rank_gone(rank, reason)
        for told in decision.told:
            self._telling.told(one, told)
        if decision.is_news:
            self._state.put(one.row())

    def _follow(self, one: Watched, decision: Decision) -> None:
        """Say what is to be said, now that it is stored."""
        for order in decision.orders:
            self._saying.order(one, order)
        for told in decision.told:
            match told:
                case Began():
                    one.whys.clear()
                    self._commands.generation_over(one.job)
                case Commit():
                    self._commands.look(one.job)
                case _:
                    self._commands.generation_over(one.job)
                    self._tell_launch(one)
        self._keep(one)

    def _tell_launch(self, one: Watched) -> None:
        """Tell a launch process how its attempt stands."""
        say = self._saying.restart if one.is_restarting else self._saying.watch
        if say(one):
            one.said_at = self._clock()

    def _keep(self, one: Watched) -> None:
        self._watched[one.job] = one
        if one.is_busy:
            self._busy.add(one.job)
        else:
            self._busy.discard(one.job)

    def _saved(self, job: str) -> int | None:
        """Return the step of the newest checkpoint."""
        found = self._shelf.committed(job)
        return found[0].step if found else None
