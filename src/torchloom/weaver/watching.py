"""Watch the clocks: which agents are silent, which ranks stand still; only the rules conclude."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import islice

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost
from torchloom.bus.messages import Beat, Progress
from torchloom.bus.page import Phase
from torchloom.rules import hang, liveness
from torchloom.weaver.journal import Journal
from torchloom.weaver.responses import Responses
from torchloom.weaver.roster import Roster
from torchloom.weaver.store.rows import Rank

LOOK = 0.25  # seconds between two looks at who was silent
_TOGETHER = 200  # agents that are noted to be lost in one transaction
ECHO = subjects.beat("weaver")  # our own words come back to us among the beats, in their turn
_AGAIN = 5.0  # seconds after which a word that has not come back is held to be lost
STANDS = 1.0  # seconds; whoever moved later than that is not worth a look


class Watching:
    """Feed `rules/liveness` and `rules/hang`, and note what they say."""

    def __init__(
        self,
        bus: Bus,
        roster: Roster,
        responses: Responses,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._roster = roster
        self._responses = responses
        self._journal = journal
        self._clock = clock
        self._nodes = liveness.State()
        self._heard = {agent.id for agent in roster.agents() if agent.state == "up"}
        self._echo = False
        self._awaited: float | None = None  # since when our own word is on its way
        self._ranks: dict[tuple[str, str], hang.State] = {}  # by job and agent
        self.suspects: dict[str, str] = {}  # why, by incarnation
        if self._heard:
            self.interrupted()  # who was there before us has time to come back

    def interrupted(self) -> None:
        """Our connection broke or came back: nobody's silence counts for a while."""
        self._nodes, _ = liveness.step(self._nodes, liveness.Interrupted())
        self._awaited = None

    def heard(self, agent: str) -> None:
        """An agent said something."""
        self._heard.add(agent)

    def echo(self) -> None:
        """Our own word came back, and what others said before it has been heard."""
        self._echo, self._awaited = True, None

    async def look(self) -> None:
        """One look at who was silent. `run` of the weaver repeats it.

        While our own word is on its way, so may be others': with much to do we hear them late,
        and nobody is silent for that.
        """
        now = self._clock()
        if self._awaited is not None:
            if now - self._awaited > _AGAIN:
                await self._call(now)
            return
        tick = liveness.Tick(now, frozenset(self._heard), self._echo)
        self._heard.clear()
        self._echo = False
        self._nodes, effects = liveness.step(self._nodes, tick)
        await self._lose(effect for effect in effects if isinstance(effect, liveness.NodeLost))
        await self._call(now)

    async def _call(self, now: float) -> None:
        """Say a word that comes back to us; without a bus none does."""
        with contextlib.suppress(BusLost):
            self._awaited = now  # it may be back before we are
            await self._bus.publish(ECHO, b"")
            return
        self._awaited = None

    async def _lose(self, effects: Iterable[liveness.NodeLost]) -> None:
        """Note who is lost: a rack's worth in one go, and the living are heard in between."""
        silent = ((each.node, f"silent for {each.silent_for:.1f} s") for each in effects)
        while lost := dict(islice(silent, _TOGETHER)):
            self._roster.agents_lost(lost)
            await asyncio.sleep(0)

    def beat(self, beat: Beat) -> None:
        """Look at the ranks that stand still, or did at the last beat."""
        jobs: dict[str, list[Progress]] = {}
        for each in beat.progress:
            if each.moved > STANDS or each.head.incarnation in self.suspects:
                jobs.setdefault(each.head.job, []).append(each)
        for job, found in jobs.items():
            self._report(job, beat, found)

    def forget(self, rank: Rank) -> None:
        """A rank's life is over, and with it what was suspected."""
        self.suspects.pop(rank.incarnation, None)
        key = (rank.job, rank.agent)
        if key in self._ranks:
            self._ranks[key], _ = hang.step(self._ranks[key], hang.Exited(rank.rank))
            if not self._ranks[key].ranks:
                del self._ranks[key]

    def _report(self, job: str, beat: Beat, found: Iterable[Progress]) -> None:
        known = {each.head.rank: each for each in found if self._is_up(each)}
        key = (job, beat.agent)
        state = self._ranks.get(key, hang.State())
        for rank in known.keys() - state.ranks.keys():
            state, _ = hang.step(state, hang.Started(rank))
        report = hang.Report(beat.sent, {rank: _progress(each) for rank, each in known.items()})
        state, effects = hang.step(state, report)
        self._ranks[key] = state
        for effect in effects:
            if isinstance(effect, hang.Suspect | hang.Cleared | hang.GiveUp):
                self._do(job, known[effect.rank], effect)

    def _is_up(self, seen: Progress) -> bool:
        row = self._roster.of_life(seen.head.incarnation)
        return row is not None and row.state == "up"

    def _do(
        self, job: str, seen: Progress, effect: hang.Suspect | hang.Cleared | hang.GiveUp
    ) -> None:
        life, rank = seen.head.incarnation, seen.head.rank
        match effect:
            case hang.Suspect():
                self.suspects[life] = effect.why
                self._journal.note("rank_suspect", job, rank=rank, reason=effect.why)
            case hang.Cleared():
                self.suspects.pop(life, None)
                self._journal.note("rank_cleared", job, rank=rank, step=seen.step)
            case hang.GiveUp():
                row = self._roster.of_life(life)
                if row is not None:
                    self._responses.given_up(row, effect.reason)


def _progress(seen: Progress) -> hang.Progress:
    """Return what the rules make of a page: before its first step a rank has no boundary, and one
    that waits for an outcome or in a pause does not stand still by itself."""
    if seen.phase == Phase.STARTING:
        return hang.Progress(None)
    name = Phase(seen.phase).name.lower() if seen.phase in set(Phase) else str(seen.phase)
    return hang.Progress(seen.step, name, 0.0 if seen.phase == Phase.WAITING else seen.moved)
