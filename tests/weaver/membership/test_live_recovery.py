"""A rank dies and the others do not: what the weaver stores and says, and to whom."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from torchloom.bus.memory import Exchange
from torchloom.messages.membership import (
    Broke,
    EndProcess,
    Fork,
    Given,
    Go,
    JoinGeneration,
    LetStand,
    MakeStore,
    NotRestored,
    ProcessReport,
    Release,
    Restart,
    Transfer,
    Watch,
)
from torchloom.messages.plane import Kill
from torchloom.rules.devices import DeviceState
from torchloom.rules.membership import live_recovery as rules
from torchloom.rules.membership.events import StoreMade
from torchloom.rules.membership.generation import State
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.rows import LiveRecoveryRow

from ...harness.fake_agents import job_event, register, until, weaver_at
from .members import JOB, begun, events, facts, orders, recovered, timeless, trained


@pytest.fixture
def commits() -> Iterator[list[int]]:
    """Count the transactions of any database."""
    count = [0]

    def commit(connection: sa.Connection) -> None:
        count[0] += 1

    sa.event.listen(sa.engine.Engine, "commit", commit)
    yield count
    sa.event.remove(sa.engine.Engine, "commit", commit)


def test_a_killed_rank_is_replaced_and_the_others_go_on(place: DatabasePlace) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(place, exchange) as weaver:
            agent = await trained(exchange, weaver)
            survivor = agent.members[0]

            await agent.launch.kill(2)
            await recovered(agent, weaver, 1)

            job = weaver.jobs.get(JOB)
            assert (job.state, job.reason, job.generation) == ("RUNNING", "recovered", 1)
            assert orders(survivor.heard) == ["Welcome", "JoinGeneration", "Transfer", "Go"]
            moves = [(2, "state", 9, 0), *((rank, "page", 8, rank) for rank in range(3))]
            given = tuple(Given(*move) for move in moves)
            sent = survivor.of(Transfer)[0]
            store, start = "file:///dev/shm/1", 9
            nodes = ("node1",) * 3
            assert (sent.store, sent.start, sent.given, sent.nodes) == (store, start, given, nodes)
            assert sent.head.incarnation == survivor.head.incarnation
            (fork,) = {(m.rank, m.life, m.node) for m in agent.launch.of(Fork)}
            assert fork == (2, 2, "node1")
            assert events(weaver, "live", "regrouping", "recovered", "rank_gone") == [
                ("live", -1, ""),
                ("rank_gone", 2, "exit_signal_9_rank_2"),
                ("regrouping", -1, "exit_signal_9_rank_2"),
                ("recovered", -1, "exit_signal_9_rank_2"),
            ]
            (began,), (done,) = facts(weaver, "regrouping"), facts(weaver, "recovered")
            reason = "exit_signal_9_rank_2"
            assert began == {"generation": 1, "mode": "live", "reason": reason}
            assert 0 <= done.pop("seconds") < 60
            assert done == {
                "generation": 1,
                "start": 9,
                "moves": [*map(list, moves)],
                "inexact": [],
            }

    asyncio.run(scenario())


def test_a_loss_is_answered_in_one_transaction_and_without_a_clock(
    tmp_path: Path, commits: list[int]
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.launch.silent |= {Fork, MakeStore}
            for member in agent.members.values():
                member.silent.add(JoinGeneration)
            before = commits[0]

            await agent.launch.kill(2)
            await until(lambda: agent.members[1].of(JoinGeneration))
            await until(lambda: agent.launch.of(Fork) and agent.launch.of(MakeStore))

            assert commits[0] == before + 1

    asyncio.run(scenario())


def test_a_whole_recovery_needs_no_clock(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            await agent.launch.kill(0)
            await recovered(agent, weaver, 1)

    asyncio.run(scenario())


def test_two_that_die_at_once_are_both_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            await agent.launch.kill(0, 2)
            await recovered(agent, weaver, 2)

            assert {(m.rank, m.life) for m in agent.launch.of(Fork)} == {(0, 2), (2, 2)}
            assert {m.head.generation for m in agent.members[1].of(JoinGeneration)} == {2}

    asyncio.run(scenario())


def test_one_that_dies_while_another_is_replaced_is_one_more_generation(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[1].silent.add(Transfer)
            await agent.launch.kill(2)
            await until(lambda: agent.members[1].of(Transfer))

            await agent.launch.kill(1)
            await recovered(agent, weaver, 2)

            assert {(m.rank, m.life) for m in agent.launch.of(Fork)} == {(1, 2), (2, 2)}
            assert len(facts(weaver, "recovered")) == 1

    asyncio.run(scenario())


def test_a_newcomer_that_dies_is_replaced_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.launch.dies.add((2, 2))

            await agent.launch.kill(2)
            await recovered(agent, weaver, 2)

            assert {(m.rank, m.life) for m in agent.launch.of(Fork)} == {(2, 2), (2, 3)}
            assert agent.members[2].register.life == 3

    asyncio.run(scenario())


def test_a_newcomer_that_cannot_be_started_is_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.launch.fails.add((2, 2))

            await agent.launch.kill(2)
            await recovered(agent, weaver, 2)

            assert agent.members[2].register.life == 3

    asyncio.run(scenario())


def test_the_ranks_of_a_lost_node_come_up_where_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange)
            launch = agent.launch
            launch.lives[2] = ProcessReport(2, 1, "node2")
            await launch.says()
            for member in agent.members.values():
                await member.trains()
            await until(lambda: launch.of(Watch))

            launch.lost = ("node2",)
            await launch.says()
            await recovered(agent, weaver, 1)

            assert {(m.rank, m.life, m.node) for m in launch.of(Fork)} == {(2, 2, "node1")}
            assert events(weaver, "regrouping") == [("regrouping", -1, "node_lost_node2")]
            assert agent.members[0].of(Transfer)[0].nodes == ("node1",) * 3

    asyncio.run(scenario())


@pytest.mark.parametrize("silent", [Watch, Fork, MakeStore, JoinGeneration, Transfer, Go])
def test_the_next_weaver_goes_on_where_the_last_one_was(place: DatabasePlace, silent: Any) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(place, exchange) as weaver:
            agent = await trained(exchange, weaver)
            for player in agent.players:
                player.silent.add(silent)
            if silent is not Watch:
                await agent.launch.kill(2)
                await until(lambda: any(player.of(silent) for player in agent.players))
        for player in agent.players:
            player.silent.clear()
            player.heard.clear()
        agent.heard.clear()
        async with weaver_at(place, exchange) as weaver:
            assert weaver.live_recovery.watched() == {JOB}
            if silent is Watch:
                await until(lambda: agent.launch.of(Watch))
                await agent.launch.kill(2)
            await recovered(agent, weaver, 1)

            assert {getattr(m, "epoch", 2) for one in agent.players for m in one.heard} == {2}
            assert [event[0] for event in events(weaver, "regrouping", "recovered")] == [
                "regrouping",
                "recovered",
            ]
            assert agent.members[2].register.life == 2
            moved = [m.store for one in agent.players for m in one.of(Transfer)]
            assert set(moved) <= {"file:///dev/shm/1"}

    asyncio.run(scenario())


def test_a_weaver_that_was_replaced_says_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as old:
            agent = await trained(exchange, old)
            async with weaver_at(tmp_path, exchange) as weaver:
                await until(lambda: weaver.live_recovery.watched())
                agent.heard.clear()

                await agent.launch.kill(2)
                await recovered(agent, weaver, 1)

                said = [
                    m for m in agent.heard if isinstance(m, JoinGeneration | Fork | Transfer | Go)
                ]
                assert {message.epoch for message in said} == {2}

    asyncio.run(scenario())


def test_a_collective_that_broke_with_nobody_gone_has_all_meet_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            await agent.act(Broke(agent.members[1].head, 9, True, "connection reset"))
            await recovered(agent, weaver, 1)

            assert agent.launch.of(Fork) == []
            assert events(weaver, "regrouping") == [("regrouping", -1, "collective_error_rank_1")]

    asyncio.run(scenario())


def test_an_exception_of_the_program_is_let_stand(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            await agent.act(Broke(agent.members[1].head, 9, False, "ValueError"))
            await until(lambda: agent.members[1].of(LetStand))

            assert not weaver.live_attempts.is_recovering(JOB)

    asyncio.run(scenario())


def test_what_cannot_be_taken_is_met_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[1].silent.add(Transfer)
            await agent.launch.kill(2)
            await until(lambda: agent.members[1].of(Transfer))

            head = msgspec.structs.replace(agent.members[1].head, generation=1)
            agent.members[1].silent.clear()
            await agent.act(NotRestored(head, "the hash of a chunk is not right"))
            await recovered(agent, weaver, 2)

            assert len(agent.launch.newcomers) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("rank", "why", "cause"),
    [
        (1, "gradients are added up over several steps", "unfit"),
        (None, "all_reduce", "prologue_collectives"),
    ],
)
def test_what_live_cannot_do_is_left_to_the_launch_process(
    tmp_path: Path, rank: int | None, why: str, cause: str
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            speaker = agent.launch if rank is None else agent.members[rank]
            speaker.why = why

            await agent.launch.kill(2)
            await until(lambda: len(agent.launch.of(Restart)) > 1)  # it is said again

            said = agent.launch.of(Restart)[0]
            assert (said.attempt, said.reason, said.cause) == (0, "exit_signal_9_rank_2", cause)
            assert facts(weaver, "live_ended")[0]["why"] == {str(2 if rank is None else rank): why}
            assert weaver.jobs.get(JOB).state == "RECOVERING"
            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())


def test_a_restart_is_ordered_until_the_next_attempt_is_there(place: DatabasePlace) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(place, exchange) as weaver:
            agent = await trained(exchange, weaver)
            await agent.launch.kill(0, 1, 2)
            await until(lambda: agent.launch.of(Restart))
        agent.launch.heard.clear()
        async with weaver_at(place, exchange) as weaver:
            await until(lambda: agent.launch.of(Restart))
            said = agent.launch.of(Restart)[0]
            assert (said.epoch, said.cause) == (2, "no_survivor")

            launch = agent.launch
            launch.attempt, launch.lives = 1, launch.lives[:0]
            await launch.says()
            await until(lambda: not weaver.store.state.find(LiveRecoveryRow))

            assert [fact["cause"] for fact in facts(weaver, "live_ended")] == ["no_survivor"]

    asyncio.run(scenario())


def test_all_are_released_when_all_have_finished_and_may_train_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            first, *others = agent.members.values()
            await first.finishes()
            for member in others:
                assert first.of(Release) == []
                await member.finishes()
            await until(lambda: all(member.of(Release) for member in agent.members.values()))
            await until(lambda: agent.launch.of(Watch)[-1].is_live is False)
            assert weaver.live_recovery.watched() == frozenset()

            for member in agent.members.values():
                await member.trains(30)
            await until(lambda: agent.launch.of(Watch)[-1].is_live is True)
            await agent.launch.kill(1)
            await recovered(agent, weaver, 1)

    asyncio.run(scenario())


def test_a_device_that_fails_ends_its_rank_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            weaver.responses.device("node1/cpu/1", DeviceState.FAILED, "test", "ecc")
            await recovered(agent, weaver, 1)

            ended = {(m.rank, m.life, m.reason) for m in agent.launch.of(EndProcess)}
            assert ended == {(1, 1, "device_failed_node1/cpu/1")}
            assert agent.of(Kill) == []
            reason = "device_failed_node1/cpu/1"
            assert events(weaver, "kill", "rank_gone", "regrouping") == [
                ("kill", 1, reason),
                ("regrouping", -1, reason),
                ("rank_gone", 1, reason),
            ]

    asyncio.run(scenario())


def test_a_rank_that_hangs_is_ended_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)

            weaver.responses.given_up(weaver.roster.find(JOB, "trainer", 0), "hang_rank_0")
            await recovered(agent, weaver, 1)

            assert {(m.rank, m.reason) for m in agent.launch.of(EndProcess)} == {(0, "hang_rank_0")}
            assert agent.of(Kill) == []

    asyncio.run(scenario())


def test_a_loss_of_nan_that_restarts_is_no_loss_of_ranks(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            policy = {"recovery": "live", "on_loss": "restart"}
            await agent.act(job_event("job", JOB, policy=policy))
            head = agent.members[1].head
            nan = msgspec.structs.replace(job_event("nan", JOB), head=head)
            await agent.send(head, 1, nan)
            await until(lambda: len(agent.of(Kill)) == 3)

            assert agent.launch.of(Watch)[-1].is_live is False
            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())


def test_a_later_attempt_an_end_and_a_cancel_each_close_what_was_live(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agents = {job: await trained(exchange, weaver, job=job) for job in ("a", "b", "c")}
            launch = agents["a"].launch
            launch.attempt = 1
            await launch.says()
            await agents["b"].act(job_event("job_ended", "b", state="FAILED", reason="no"))
            await weaver.coordinator.cancel(weaver.jobs.get("c"), "ann", "")
            await until(lambda: not weaver.live_recovery.watched())

            assert weaver.store.state.find(LiveRecoveryRow) == []
            await until(lambda: agents["c"].launch.of(Watch)[-1].is_live is False)

    asyncio.run(scenario())


def test_who_is_not_watched_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange):
            agent = await begun(exchange)
            member = agent.members[0]

            await agent.act(Broke(member.head, 3, True, "reset"))
            await member.finishes()
            await agent.launch.kill(1)
            await until(lambda: member.of(Release) and member.of(LetStand))
            await until(lambda: agent.launch.of(Watch))

            assert {message.is_live for message in agent.launch.of(Watch)} == {False}

    asyncio.run(scenario())


def test_a_rank_that_cannot_says_why_once_and_nobody_is_watched(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange)
            await agent.launch.says()
            for member in agent.members.values():
                await member.trains(why="no model is wrapped" if member.head.rank == 1 else "")
                await member.trains(why="no model is wrapped" if member.head.rank == 1 else "")
            await until(lambda: events(weaver, "not_live"))

            assert events(weaver, "not_live") == [("not_live", 1, "no model is wrapped")]
            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())


def test_without_the_policy_nobody_is_watched(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange)
            await agent.act(job_event("job", JOB, policy={"recovery": "restart"}))
            await agent.launch.says()
            for member in agent.members.values():
                await member.trains()
            await agent.launch.says()
            await agent.members[0].finishes()  # heard after all of that
            await until(lambda: agent.members[0].of(Release))

            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", [{}, {"on_loss": "fail"}], ids=["nothing", "nan"])
def test_a_job_that_says_nothing_of_lost_ranks_is_watched_if_it_can_be(
    tmp_path: Path, policy: dict[str, str]
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange, policy=policy)
            await agent.launch.says()
            for member in agent.members.values():
                await member.trains()
            await until(lambda: JOB in weaver.live_recovery.watched())

            await agent.launch.kill(1)
            await recovered(agent, weaver, 1)

    asyncio.run(scenario())


def test_a_job_that_says_nothing_and_cannot_is_not_told_of(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange, policy={})
            await agent.launch.says()
            for member in agent.members.values():
                await member.trains(why="no model is wrapped")
            await agent.members[0].finishes()  # heard after all of that
            await until(lambda: agent.members[0].of(Release))

            assert events(weaver, "not_live") == []
            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())


def test_a_rank_that_names_another_policy_ends_the_watch(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await begun(exchange, policy={})
            await agent.launch.says()
            for member in agent.members.values():
                await member.trains()
            await until(lambda: JOB in weaver.live_recovery.watched())

            await agent.act(job_event("job", JOB, policy={"recovery": "restart"}))
            await agent.launch.kill(1)
            await until(lambda: [told.is_live for told in agent.launch.of(Watch)][-1:] == [False])

            assert weaver.live_recovery.watched() == frozenset()
            assert weaver.jobs.get(JOB).generation == 0

    asyncio.run(scenario())


def test_a_quiet_job_costs_nothing(tmp_path: Path, commits: list[int]) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            await agent.launch.says()
            await agent.members[0].trains(5)
            await agent.act(Broke(agent.members[0].head, 5, False))
            await until(lambda: agent.members[0].of(LetStand))  # all before it was heard
            heard, before = len(agent.heard), commits[0]
            assert weaver.live_attempts.busy == frozenset()

            for _ in range(100):
                weaver.live_recovery.tick()
            await asyncio.sleep(0)

            assert (len(agent.heard), commits[0]) == (heard, before)

    asyncio.run(scenario())


def test_what_a_launch_process_repeats_is_not_given_to_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    def counted(state: State, event: object, step: Any = rules.step) -> Any:
        events.append(event)
        return step(state, event)

    def heard_of_store(weaver: Weaver) -> bool:
        one = weaver.live_attempts.get(JOB)
        return one is not None and one.stored == 0

    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.launch.store = ("tcp://127.0.0.1:1", 0)
            await agent.launch.says()
            await until(lambda: heard_of_store(weaver) and not weaver.live_attempts.busy)
            monkeypatch.setattr(rules, "step", counted)

            for _ in range(3):
                await agent.launch.says()
            await agent.launch.says(stored=1)
            await until(lambda: events)

            assert events == [StoreMade(1)]

    asyncio.run(scenario())


def test_nobody_else_speaks_for_a_launch_process_or_a_rank(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with timeless(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            stranger = await begun(exchange, job="other")
            stranger.name = "node-2"
            agent.launch.ends(2)
            agent.launch.agent = stranger
            agent.members[1].agent = stranger

            await agent.launch.says()
            await agent.members[1].finishes()
            await until(lambda: weaver.dropped["foreign_agent"] == 2)

            assert not weaver.live_attempts.is_recovering(JOB)

    asyncio.run(scenario())


def test_a_life_that_was_replaced_is_ended_when_it_speaks(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            await agent.launch.kill(2)
            await recovered(agent, weaver, 1)
            stray = register(1, generation=2, incarnation="stray", world=3, attempt=0, rank_life=7)
            member = agent.rank(stray)
            await agent.act(stray)

            await agent.act(Broke(member.head, 3, True))
            await until(lambda: agent.launch.of(EndProcess))

            assert {(m.rank, m.life) for m in agent.launch.of(EndProcess)} == {(1, 7)}

    asyncio.run(scenario())
