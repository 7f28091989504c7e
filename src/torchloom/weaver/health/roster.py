"""The agents and ranks that have registered, as stored."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from torchloom.messages.plane import Head, Hello, Register
from torchloom.weaver.events import AgentDown, Dispatcher, Journal
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import AgentRow, RankProcessRow

OVER = ("gone", "ended")  # a process in these states has ended; a `lost` one may return

Key = tuple[str, str, int]  # job, role, rank


class Roster:
    """Agents and ranks. A repeated registration changes nothing."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        journal: Journal,
        events: Dispatcher,
        dropped: Counter[str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._journal = journal
        self._events = events
        self._dropped = dropped
        self._now = now
        active = [job.id for job in jobs.active()]
        self._agents = {agent.id: agent for agent in state.find(AgentRow)}
        self._ranks: dict[Key, RankProcessRow] = {}
        self._by_incarnation: dict[str, Key] = {}
        self._of_job: dict[str, dict[Key, RankProcessRow]] = {}
        self._of_agent: dict[str, set[Key]] = {}
        self._up: Counter[tuple[str, str, int]] = Counter()  # by job, role and generation
        self._bound: Counter[tuple[str, str, int]] = Counter()
        for row in state.find(RankProcessRow, job=active):
            self._keep(row)

    def agents(self) -> list[AgentRow]:
        return list(self._agents.values())

    def agent(self, agent: str) -> AgentRow | None:
        return self._agents.get(agent)

    def may_speak(self, agent: str, job: str) -> bool:
        """Tell whether an agent may report on a job."""
        return self._jobs.may_speak(agent, job)

    def ranks(self, job: str) -> list[RankProcessRow]:
        """Return the current process of every rank of a job."""
        found = list(self._of_job.get(job, {}).values())
        if not found and self._jobs.get(job):  # it ended before this weaver started
            found = self._state.find(RankProcessRow, job=job)
        return sorted(_present(found), key=lambda row: (row.role, row.rank))

    def is_whole(self, rank: RankProcessRow) -> bool:
        """Tell whether all ranks of a rank's membership are up and one of them has boundaries."""
        membership = (rank.job, rank.role, rank.generation)
        is_bound = self._bound[membership] > 0
        return is_bound and self._up[membership] >= max(1, rank.world_size)

    def everyone(self) -> list[RankProcessRow]:
        """Return the current process of every rank of jobs that have not ended."""
        return list(self._ranks.values())

    def living(self) -> Iterator[RankProcessRow]:
        """Yield the ranks that are up."""
        return (row for row in list(self._ranks.values()) if row.state == "up")

    def speaker(self, head: Head, agent: str) -> RankProcessRow | None:
        """Return the rank that sends this through its own agent; none for any other sender."""
        row = self._ranks.get(self._by_incarnation.get(head.incarnation, ("", "", -1)))
        if row is None or (row.job, row.rank) != (head.job, head.rank):
            self._dropped["unknown_rank"] += 1
        elif row.agent != agent:
            self._dropped["foreign_agent"] += 1
        elif row.generation != head.generation:
            self._dropped["old_generation"] += 1
        else:
            return row
        return None

    def of_incarnation(self, incarnation: str) -> RankProcessRow | None:
        """Return the rank whose current process this is."""
        return self._ranks.get(self._by_incarnation.get(incarnation, ("", "", -1)))

    def greet(self, hello: Hello) -> AgentRow:
        """Register an agent, or another incarnation of it."""
        known, now = self._agents.get(hello.agent), self._now()
        agent = AgentRow(
            id=hello.agent,
            host=hello.host,
            boot=hello.boot,
            pid=hello.pid,
            first_seen=known.first_seen if known else now,
            greeted_at=known.greeted_at if known else now,
        )
        if agent != known:
            agent = replace(agent, greeted_at=now)
            with self._state.together():
                self._state.put(agent)
                facts = {"agent": agent.id, "host": agent.host, "pid": agent.pid}
                self._journal.note("agent_up", facts=facts)
            self._agents[agent.id] = agent
        return agent

    def agents_lost(self, reasons: Mapping[str, str]) -> None:
        """Store which agents are silent for too long, and why, in one transaction."""
        with self._state.together():
            for agent, reason in reasons.items():
                self.agent_lost(agent, reason)

    def agent_left(self, agent: str) -> None:
        """Store that an agent has left in order: the job has ended on its node."""
        self.agent_lost(agent, "its job has ended there", "left")

    def agent_lost(self, agent: str, reason: str, state: str = "lost") -> None:
        """Store that an agent is silent for too long: its ranks are lost, but may still run."""
        known = self._agents.get(agent)
        if known is None or known.state != "up":
            return
        lost = replace(known, state=state, reason=reason)
        with self._state.together():
            self._state.put(lost)
            self._journal.note(f"agent_{state}", reason=reason, facts={"agent": agent})
            self._agents[agent] = lost
            self._events.publish(AgentDown(agent))
            for rank in [self._ranks[key] for key in self._of_agent.get(agent, ())]:
                if rank.state == "up":
                    self._put(replace(rank, state="lost", reason=f"agent_lost_{agent}"), "")

    def find(self, job: str, role: str, rank: int) -> RankProcessRow | None:
        """Return the current process of one rank."""
        return self._ranks.get((job, role, rank))

    def mark(self, rank: RankProcessRow, reason: str) -> None:
        """Store what has happened to a rank."""
        known = self._ranks.get(_key(rank))
        if known and known.incarnation == rank.incarnation and known.reason != reason:
            self._put(replace(known, reason=reason), "")

    def register(self, agent: str, message: Register) -> RankProcessRow | None:
        """Register a rank; none where its generation or job is over."""
        head = message.head
        key = (head.job, message.role, head.rank)
        known = self._ranks.get(key)
        if known and head.generation < known.generation:
            self._dropped["old_generation"] += 1
            return None
        row = _row(agent, message, self._now())
        is_same = known is not None and known.incarnation == row.incarnation
        if self._jobs.appear(head.job, head.generation, not is_same) is None:
            self._dropped["ended_job"] += 1
            return None
        if known and is_same:
            row = _repeated(row, known)
        if row != known:
            self._put(row, "" if is_same else "rank_up")
        return row

    def gone(self, row: RankProcessRow, reason: str, state: str = "gone") -> RankProcessRow | None:
        """Store that this process of a rank has ended; none where that is known."""
        known = self._ranks.get(_key(row))
        if known is None or known.incarnation != row.incarnation or known.state in OVER:
            return None
        over = replace(known, state=state, reason=reason, ended_at=self._now())
        self._put(over, "rank_gone")
        return over

    def _put(self, row: RankProcessRow, kind: str) -> None:
        with self._state.together():
            self._state.put(row)
            if kind:
                facts = {"pid": row.pid, "node": row.node, "generation": row.generation}
                self._journal.note(kind, row.job, rank=row.rank, reason=row.reason, facts=facts)
        self._keep(row)

    def _keep(self, row: RankProcessRow) -> None:
        key = _key(row)
        before = self._ranks.get(key)
        if before and before.incarnation != row.incarnation:
            self._by_incarnation.pop(before.incarnation, None)
        for each, sign in ((before, -1), (row, 1)):
            if each is not None and each.state == "up":
                membership = (each.job, each.role, each.generation)
                self._up[membership] += sign
                self._bound[membership] += sign * (each.boundary != "none")
        if before and before.agent != row.agent:
            self._of_agent[before.agent].discard(key)
        self._of_agent.setdefault(row.agent, set()).add(key)
        self._ranks[key] = row
        self._of_job.setdefault(row.job, {})[key] = row
        self._by_incarnation[row.incarnation] = key


def _key(row: RankProcessRow) -> Key:
    return row.job, row.role, row.rank


def _present(rows: Sequence[RankProcessRow]) -> Iterator[RankProcessRow]:
    """Yield the ranks of a job, without the surplus of an earlier, larger attempt."""
    newest: dict[str, RankProcessRow] = {}
    for row in rows:
        if row.attempt >= newest.get(row.role, row).attempt:
            newest[row.role] = row
    for row in rows:
        last = newest[row.role]
        if row.attempt == last.attempt or row.rank < last.world_size:
            yield row


def _repeated(row: RankProcessRow, known: RankProcessRow) -> RankProcessRow:
    """Return a rank that registers again; one that was `lost` is up again."""
    row = replace(row, registered_at=known.registered_at)
    if known.state == "lost":
        return row
    return replace(row, state=known.state, reason=known.reason, ended_at=known.ended_at)


def _row(agent: str, message: Register, now: float) -> RankProcessRow:
    return RankProcessRow(
        job=message.head.job,
        role=message.role,
        rank=message.head.rank,
        generation=message.head.generation,
        incarnation=message.head.incarnation,
        world_size=message.world_size,
        local_rank=message.local_rank,
        node=message.node,
        agent=agent,
        pid=message.pid,
        started=message.started,
        replica=message.replica,
        devices=list(message.devices),
        boundary=message.boundary,
        knobs=[msgspec.structs.asdict(knob) for knob in message.knobs],
        registered_at=now,
        life=message.life,
        attempt=message.attempt,
    )
