"""Watch the clocks: which agents are silent, which ranks stand still; only the rules conclude."""

import contextlib
import time
from collections.abc import Callable, Iterable

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
ECHO = subjects.door("echo")  # where our own words come back to us
_STANDS = 1.0  # seconds; whoever moved later than that is not worth a look


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
        self._ranks: dict[tuple[str, str], hang.State] = {}  # by job and agent
        self.suspects: dict[str, str] = {}  # why, by incarnation
        self.interrupted()  # who was there before us has time to come back

    def interrupted(self) -> None:
        """Our connection broke or came back: nobody's silence counts for a while."""
        self._nodes, _ = liveness.step(self._nodes, liveness.Interrupted())

    def heard(self, agent: str) -> None:
        """An agent said something."""
        self._heard.add(agent)

    async def echo(self, subject: str, data: bytes, reply: str) -> None:
        """Our own word came back."""
        self._echo = True

    async def look(self) -> None:
        """One look at who was silent. `run` of the weaver repeats it."""
        tick = liveness.Tick(self._clock(), frozenset(self._heard), self._echo)
        self._heard.clear()
        self._echo = False
        self._nodes, effects = liveness.step(self._nodes, tick)
        for effect in effects:
            if isinstance(effect, liveness.NodeLost):
                why = f"silent for {effect.silent_for:.1f} s"
                self._roster.agent_lost(effect.node, why)
        with contextlib.suppress(BusLost):  # then nothing comes back, which is what it is for
            await self._bus.publish(ECHO, b"")

    def beat(self, beat: Beat) -> None:
        """Look at the ranks that stand still, or did at the last beat."""
        standing = [each for each in beat.progress if each.moved > _STANDS]
        if not standing and not self.suspects:
            return
        jobs: dict[str, list[Progress]] = {}
        for each in beat.progress:
            if each.moved > _STANDS or each.head.incarnation in self.suspects:
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
