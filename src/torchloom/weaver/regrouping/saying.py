"""Put what `rules/live` orders into words, for ranks and for the processes that launch jobs."""

from collections import Counter

from torchloom.bus import regrouping as words
from torchloom.bus.messages import NO_RANK, VERSION, Head, Message
from torchloom.rules.regroup import (
    Fork,
    Go,
    Kill,
    LetStand,
    MakeStore,
    Notify,
    Order,
    Release,
    Seal,
    Transfer,
)
from torchloom.weaver.regrouping.watched import Watched
from torchloom.weaver.roster import OVER, Roster
from torchloom.weaver.sending import Sender
from torchloom.weaver.store.rows import Rank

_ToRank = Notify | Transfer | Go | LetStand | Release
_ToLaunch = Fork | MakeStore | Kill


class Saying:
    """Say it through agents. Who cannot be reached yet is told again when the rule says so."""

    def __init__(self, roster: Roster, sender: Sender, epoch: int, dropped: Counter[str]) -> None:
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._dropped = dropped
        self._launches: dict[str, str] = {}  # the agents of launch processes, by job

    def launch_at(self, job: str, agent: str) -> None:
        """Note through which agent a job's launch process is reached."""
        self._launches[job] = agent

    def is_launch(self, job: str, agent: str) -> bool:
        """Tell whether an agent may speak for a job's launch process."""
        if self._launches.setdefault(job, agent) == agent:
            return True
        self._dropped["foreign_agent"] += 1
        return False

    def forget(self, job: str) -> None:
        """Know no more where a job's launch process was."""
        self._launches.pop(job, None)

    def order(self, one: Watched, order: Order) -> None:
        """Say one order of the rule."""
        match order:
            case Fork() | MakeStore() | Kill():
                self._launch(self._to_launch(one, order))
            case Seal():
                pass  # storage is asked where it is decided
            case _:
                row = self._roster.find(one.job, one.role, order.who.rank)
                life = (one.attempt, order.who.life)
                if row and (row.attempt, row.life) == life and row.state not in OVER:
                    message = self._to_rank(one, order, _head(row, order.generation))
                    self._say(row.agent, message)

    def watch(self, one: Watched, is_live: bool | None = None) -> bool:
        """Tell a launch process whether its losses are dealt with here, if it can be told."""
        head = _launch_head(one.job, one.generation, one.role)
        is_live = not one.is_over if is_live is None else is_live
        return self._launch(words.Watch(head, self._epoch, one.attempt, is_live))

    def unwatch(self, said: words.Lives) -> None:
        """Tell a launch process of which nothing is known here that its losses are its own."""
        head = _launch_head(said.head.job, said.head.generation, said.head.role)
        self._launch(words.Watch(head, self._epoch, said.attempt, False))

    def restart(self, one: Watched) -> bool:
        """Tell a launch process to start all ranks again, if it can be told."""
        head = _launch_head(one.job, one.generation, one.role)
        reason = one.state.record.reason
        return self._launch(words.Restart(head, self._epoch, one.attempt, reason, one.cause))

    def release(self, rank: Rank, generation: int) -> None:
        """Have a rank that nobody watches go on behind its steps."""
        self._say(rank.agent, words.Release(_head(rank, generation), self._epoch))

    def let_stand(self, rank: Rank, generation: int) -> None:
        """Tell a rank that nobody watches that its generation stands."""
        self._say(rank.agent, words.LetStand(_head(rank, generation), self._epoch))

    def _to_launch(self, one: Watched, order: _ToLaunch) -> Message:
        head, epoch = _launch_head(one.job, one.generation, one.role), self._epoch
        match order:
            case MakeStore():
                return words.MakeStore(head, epoch, one.attempt, order.node)
            case Fork(who):
                return words.Fork(head, epoch, one.attempt, who.rank, who.life, who.node)
            case Kill(who):
                return words.EndLife(head, epoch, one.attempt, who.rank, who.life, order.reason)

    def _to_rank(self, one: Watched, order: _ToRank, head: Head) -> Message | None:
        match order:
            case Notify():
                return words.Regroup(head, self._epoch)
            case Transfer():
                return self._transfer(one, order, head)
            case Go():
                return words.Go(head, self._epoch, order.start)
            case LetStand():
                return words.LetStand(head, self._epoch)
            case Release():
                return words.Release(head, self._epoch)

    def _transfer(self, one: Watched, order: Transfer, head: Head) -> Message | None:
        if one.stored != order.generation:
            return None  # the launch process says within a second where its store is
        plan = order.plan
        given = tuple(words.Given(m.target, str(m.what), m.step, m.source) for m in plan.moves)
        nodes = tuple(seat.node for seat in one.state.record.seats)
        return words.Transfer(head, self._epoch, one.store, plan.start, given, nodes)

    def _launch(self, message: Message) -> bool:
        agent = self._launches.get(message.head.job)
        if agent is not None:
            self._say(agent, message)
        return agent is not None

    def _say(self, agent: str, message: Message | None) -> None:
        if message is not None:
            self._sender.soon(agent, message)


def _head(rank: Rank, generation: int) -> Head:
    return Head(VERSION, rank.job, generation, rank.rank, rank.incarnation, rank.role)


def _launch_head(job: str, generation: int, role: str) -> Head:
    return Head(VERSION, job, generation, NO_RANK, "", role)
