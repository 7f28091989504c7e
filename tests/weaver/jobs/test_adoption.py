"""What launch processes wrote into run folders becomes known to the weaver, late or at once."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.record_writer import (
    RunRecordWriter,
    StartedRank,
    notify_weaver,
    rank_records,
)
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.messages.plane import Commit, Event, Goodbye
from torchloom.rules.control.command import Command, CommandKind
from torchloom.rules.replicas import AppVerdict
from torchloom.rules.response import FailurePolicy, LossRecovery
from torchloom.settings import plane_dir
from torchloom.specs.api import AppState
from torchloom.specs.states import JobState
from torchloom.weaver.jobs.adoption import Adoption, RunNotices
from torchloom.weaver.jobs.registry import failure_policy
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import Exchange, MemoryBus, crowd, register, rows, until, weaver_at
from ..checkpoints.test_collection import ROOT, Node

JOB = "SELECT id, name, owner, state, reason, attempt FROM jobs"
RANKS = "SELECT rank, state, reason FROM ranks ORDER BY rank"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    plane_dir().mkdir(parents=True)


def launched(app_id: str = "job-1", **changed: Any) -> RunRecordWriter:
    """Return the ledger of a run of two ranks whose launch process is this very one."""
    role = RoleRequest("trainer", (ReplicaRequest(("true",), {}),), ranks=2, distributed=True)
    request = LaunchRequest(app_id, "train", "torchx", "/", "/logs", (role,))
    record = RunRecord(
        id=app_id,
        name="train",
        session="torchx",
        owner="ann",
        host=host_name(),
        log_dir="/logs",
        created_at=now(),
        launcher=ProcessIdentity.mine(),
        ranks=rank_records(request),
    )
    record = replace(record, **changed)
    return RunRecordWriter(RunFolder.create(request, {}, record).publish(), record)


def start(ledger: RunRecordWriter, attempt: int = 0) -> None:
    ledger.ranks_started(
        StartedRank(("trainer", 0, rank), rank, ProcessIdentity.mine(), attempt)
        for rank in range(2)
    )


def adoption(weaver: Weaver) -> Adoption:
    return Adoption(weaver.jobs, weaver.roster, weaver.reports, weaver.journal)


def test_a_run_that_was_there_before_the_weaver_is_adopted_and_its_end_is_told(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "RUNNING", "", 1)]

            ledger.finished(AppVerdict(AppState.FAILED, "exit_code_1_rank_1"), None, 0)
            adopting.look_at("job-1")

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "FAILED", "exit_code_1_rank_1", 1)]


def test_what_happened_while_no_weaver_was_up_is_known_to_the_next_and_only_once(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange, ledger = Exchange(), launched()
        start(ledger)
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 2)
            await agent.hello()
            adoption(weaver).look_at_all()
        ledger.rank_ended(("trainer", 0, 1), AppState.FAILED, -9)
        ledger.restarted(1, 1)
        for _ in range(2):
            async with weaver_at(tmp_path, exchange) as weaver:
                adoption(weaver).look_at_all()

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [
        ("job-1", "train", "ann", "RECOVERING", "exit_signal_9_rank_1", 2)
    ]
    assert rows(tmp_path, RANKS) == [(0, "up", ""), (1, "gone", "exit_signal_9_rank_1")]
    noted = rows(tmp_path, "SELECT kind, rank FROM events WHERE kind IN ('exit', 'restart')")
    assert noted == [("exit", 1), ("restart", -1)]


def policies(weaver: Weaver) -> list[FailurePolicy]:
    return [failure_policy(weaver.jobs.get(name).facts) for name in ("job-1", "job-2")]


def test_what_the_command_line_says_of_failures_counts_and_no_rank_changes_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        launched(policy={"recovery": "shrink", "min_groups": 2})
        launched("job-2")
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            other = agent.rank(register(0, job="job-2"))
            await agent.hello()
            adoption(weaver).look_at_all()
            wish = {"policy": {"recovery": "fail"}, "name": "mine", "scheduler": "theirs"}
            wish |= {"total_steps": 60}
            for head in (rank.head, other.head):
                await agent.act(Event(head, "job", 0, 1.0, wish))
            await until(lambda: "policy" in weaver.jobs.get("job-2").facts)
            found = [policies(weaver)]
            adoption(weaver).look_at_all()
            found.append(policies(weaver))

            jobs = [weaver.jobs.get(name) for name in ("job-1", "job-2")]
            assert (
                found
                == [
                    [
                        FailurePolicy(LossRecovery.SHRINK, min_groups=2),
                        FailurePolicy(LossRecovery.FAIL),
                    ]
                ]
                * 2
            )
            assert {(job.name, job.scheduler) for job in jobs} == {("train", "local")}
            assert {job.facts["total_steps"] for job in jobs} == {60}

    asyncio.run(scenario())


def test_an_exit_read_late_is_not_that_of_the_next_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange, ledger = Exchange(), launched()
        start(ledger)
        ledger.rank_ended(("trainer", 0, 1), AppState.FAILED, -9)
        ledger.restarted(1, 1)
        start(ledger, attempt=1)
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 2, generation=1)
            await agent.hello()

            adoption(weaver).look_at_all()

    asyncio.run(scenario())

    assert rows(tmp_path, RANKS) == [(0, "up", ""), (1, "up", "")]


def test_ranks_that_start_again_end_the_recovery(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            ledger.restarted(1, 1)
            adopting.look_at("job-1")
            assert rows(tmp_path, JOB)[0][3:] == ("RECOVERING", "restart", 2)

            start(ledger, attempt=1)
            adopting.look_at("job-1")

    asyncio.run(scenario())

    assert rows(tmp_path, JOB)[0][3:] == ("RUNNING", "ranks_started", 2)


def test_a_job_whose_launch_process_is_gone_has_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting, ledger = adoption(weaver), launched()
            adopting.look_at("job-1")
            gone = replace(ProcessIdentity.mine(), started="1")
            ledger.folder.write_record(replace(ledger.record, launcher=gone))

            adopting.look_again()

    asyncio.run(scenario())

    assert rows(tmp_path, JOB)[0][3:5] == ("FAILED", "launcher_lost")


def test_what_ended_before_any_weaver_and_what_is_no_run_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        launched("over-1", state=AppState.SUCCEEDED, ended_at=now())
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            for name in ("over-1", "none", "../home", ""):
                adopting.look_at(name)

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == []


def test_a_poke_is_enough_and_a_line_being_written_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = launched()
        async with weaver_at(tmp_path, Exchange()) as weaver:
            pokes = RunNotices(plane_dir(), adoption(weaver).look_at)
            pokes.open()
            with open(ledger.folder.path / "events.jsonl", "a") as events:  # noqa: ASYNC230
                events.write('{"event": "node_lost", "node":')
                events.flush()
                notify_weaver("job-1")
                await until(lambda: weaver.jobs.get("job-1") is not None)
                assert _noted(tmp_path) == []

                events.write(' "n2"}\nno json\n')
                events.flush()
                notify_weaver("job-1")
                await until(lambda: _noted(tmp_path) == [("node_lost",)])
            pokes.close()

    asyncio.run(scenario())


def _noted(folder: Path) -> list[tuple[Any, ...]]:
    return rows(folder, "SELECT kind FROM events WHERE kind = 'node_lost'")


def goes_on(ledger: RunRecordWriter) -> RunRecordWriter:
    """Return the ledger of the next life of a run."""
    before = ledger.record
    record = replace(before, state=AppState.SUBMITTED, restarts=before.restarts + 1, reason="")
    ledger.folder.write_record(record)
    after = RunRecordWriter(ledger.folder, record)
    after.resumed(ranks=2)
    start(after, record.restarts)
    return after


def test_a_run_that_goes_on_is_a_new_attempt_of_its_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = launched(checkpoints="/saved")
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            ledger.finished(AppVerdict(AppState.FAILED, "exit_code_1_rank_1"), None, 0)
            adopting.look_at("job-1")
            goes_on(ledger)

            adopting.look_at("job-1")

            known = weaver.jobs.get("job-1")
            assert known is not None
            assert (known.attempt, known.facts["checkpoints"]) == (2, "/saved")

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "RUNNING", "resumed", 2)]
    moved = "SELECT facts FROM events WHERE kind = 'job_state'"
    assert len(rows(tmp_path, moved)) == 3  # to its end, to the queue, and out of it


def test_a_life_that_began_and_ended_while_no_weaver_was_up_is_known_to_the_next(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adoption(weaver).look_at_all()
            ledger.finished(AppVerdict(AppState.CANCELLED, "cancelled_by_user"), None, 0)
            adoption(weaver).look_at_all()
        goes_on(ledger).finished(AppVerdict(AppState.SUCCEEDED, ""), None, 0)
        for _ in range(2):
            async with weaver_at(tmp_path, Exchange()) as weaver:
                adoption(weaver).look_at_all()

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "COMPLETED", "ranks_ended", 2)]


def test_a_life_that_was_left_behind_is_no_news(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            ledger.finished(AppVerdict(AppState.FAILED, "exit_code_1_rank_1"), None, 0)
            adopting.look_at("job-1")
            weaver.jobs.resume("job-1", "resumed_by_ann", {"left": 0})
            weaver.jobs.turn("job-1", JobState.RUNNING, "placed")

            adopting.look_at("job-1")
            adopting.look_again()

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "RUNNING", "placed", 2)]


def test_a_run_that_was_to_be_released_is_paused_when_it_has_ended_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            weaver.commands.order(
                "job-1", Command("c1", CommandKind.STOP, {"release": True}, "ann")
            )
            weaver.jobs.mark("job-1", {"releasing": "c1"})
            ledger.finished(AppVerdict(AppState.SUCCEEDED, ""), None, 0)

            adopting.look_at("job-1")
            adopting.look_again()
            assert weaver.jobs.get("job-1").state == "PAUSED"
            goes_on(ledger)
            adopting.look_at("job-1")

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "RUNNING", "resumed", 2)]


async def left(weaver: Weaver, exchange: Exchange, adopting: Adoption) -> tuple[Node, Any]:
    """Have the ranks of a run end by a release; what they wrote last is not known yet."""
    ledger = launched(checkpoints=ROOT)
    start(ledger)
    node = Node(MemoryBus(exchange))
    await node.start()
    ranks = [node.rank(register(rank, world=2)) for rank in range(2)]
    await node.hello()
    adopting.look_at_all()
    weaver.commands.order("job-1", Command("c1", CommandKind.STOP, {"release": True}, "ann"))
    weaver.jobs.mark("job-1", {"releasing": "c1"})
    for rank in ranks:
        await node.act(Goodbye(rank.head, 7))
    await until(lambda: {one.state for one in weaver.roster.ranks("job-1")} == {"ended"})
    ledger.finished(AppVerdict(AppState.SUCCEEDED, ""), None, 0)
    adopting.look_at("job-1")
    return node, ranks


def test_a_released_run_is_paused_when_its_last_checkpoint_is_committed(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        exchange, found = Exchange(), []
        async with weaver_at(tmp_path, exchange) as weaver:

            def state() -> str:
                adopting.settle()
                return weaver.jobs.get("job-1").state

            adopting = adoption(weaver)
            node, ranks = await left(weaver, exchange, adopting)
            found.append(state())
            node.is_deaf = True
            for rank in ranks:
                await node.write(rank, 7)
                found.append(state())
                await node.send(rank.head, 2, Goodbye(rank.head, 7), follows=1)
                await node.stored(rank.head, 2)
            await until(lambda: node.of(Commit))
            found.append(state())
            await node.answer(node.of(Commit)[0])
            await until(lambda: weaver.checkpoint_rows.committed("job-1"))
            found.append(state())
        return found

    assert asyncio.run(scenario()) == ["RUNNING"] * 4 + ["PAUSED"]


def test_a_released_run_whose_last_checkpoint_is_missing_is_paused_all_the_same(
    tmp_path: Path,
) -> None:
    async def scenario() -> list[str]:
        exchange, now = Exchange(), [0.0]
        async with weaver_at(tmp_path, exchange) as weaver:
            parts = weaver.jobs, weaver.roster, weaver.reports, weaver.journal
            adopting = Adoption(*parts, clock=lambda: now[0])
            await left(weaver, exchange, adopting)
            found = []
            for now[0] in (9.0, 11.0):
                adopting.settle()
                found.append(weaver.jobs.get("job-1").state)
        return found

    assert asyncio.run(scenario()) == ["RUNNING", "PAUSED"]


def test_a_release_that_was_asked_for_and_never_stored_leaves_a_run_its_own_end(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            adopting = adoption(weaver)
            adopting.look_at_all()
            weaver.jobs.mark("job-1", {"releasing": "c1"})  # and died before it gave the command
            ledger.finished(AppVerdict(AppState.SUCCEEDED, ""), None, 0)

            adopting.look_at("job-1")

    asyncio.run(scenario())

    assert rows(tmp_path, JOB) == [("job-1", "train", "ann", "COMPLETED", "ranks_ended", 1)]


def test_the_first_error_is_among_what_the_plane_knows_of_a_job(tmp_path: Path) -> None:
    error = {"rank": 1, "attempt": 0, "message": "bad", "traceback": "Traceback ..."}

    async def scenario() -> Any:
        ledger = launched()
        start(ledger)
        async with weaver_at(tmp_path, Exchange()) as weaver:
            ledger.restarted(1, 1, "exit_code_1_rank_1", error)
            adoption(weaver).look_at("job-1")
            known = weaver.jobs.get("job-1")
            assert known is not None
            return known.facts["first_error"], known.state, known.reason

    assert asyncio.run(scenario()) == (error, "RECOVERING", "exit_code_1_rank_1")


def test_a_newcomer_of_a_live_recovery_is_no_start_of_its_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange, ledger = Exchange(), launched()
        start(ledger)
        async with weaver_at(tmp_path, exchange) as weaver:
            adoption(weaver).look_at_all()
            weaver.jobs.turn("job-1", JobState.RECOVERING, "exit_signal_9_rank_1")

            ledger.note("started", ranks=[{"rank": 1, "life": 2}])
            adoption(weaver).look_at("job-1")
            assert weaver.jobs.get("job-1").state == "RECOVERING"

            ledger.note("started", ranks=[{"rank": 0, "life": 1}, {"rank": 1, "life": 1}])
            adoption(weaver).look_at("job-1")
            assert weaver.jobs.get("job-1").state == "RUNNING"

    asyncio.run(scenario())


def test_an_exit_is_that_of_the_very_process_that_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange, ledger = Exchange(), launched()
        start(ledger)
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 1)
            agent.rank(register(1, generation=3, attempt=0, rank_life=2))
            await agent.hello()
            adoption(weaver).look_at_all()
            place = {"role": "trainer", "replica": 0, "local_rank": 1, "attempt": 0}

            ledger.note("exit", **place, life=1, generation=0, code=-9)
            adoption(weaver).look_at("job-1")
            first = rows(tmp_path, RANKS)
            ledger.note("exit", **place, life=2, generation=1, code=-9)
            adoption(weaver).look_at("job-1")

            assert first == [(0, "up", ""), (1, "up", "")]
            assert rows(tmp_path, RANKS) == [(0, "up", ""), (1, "gone", "exit_signal_9_rank_1")]

    asyncio.run(scenario())
