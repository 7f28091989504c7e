"""Ranks that are replaced one by one: real processes, and a weaver that says what a test says."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom import settings
from torchloom.components.dist import loom
from torchloom.launch.host.identity import host_name
from torchloom.launch.host.sockets import UPLINK
from torchloom.launch.records import catalog, resumption
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.messages.base import NO_RANK
from torchloom.messages.membership import ProcessReport
from torchloom.runner.api import Runner, get_runner
from torchloom.specs.api import AppState

from ...harness.home import allowed, processes_of, until
from ..fake_agent import FakeAgent

pytestmark = pytest.mark.process
SCRIPT = """
import json, os, sys, time
from pathlib import Path
out, rank, life = Path(os.environ["OUT"]), os.environ["RANK"], os.environ["LOOM_LIFE"]
name = f"{os.environ['LOOM_ATTEMPT']}-{rank}-{life}"
print("life", life, flush=True)
partial = out / f".{name}"
partial.write_text(json.dumps({"pid": os.getpid(), **os.environ}))
partial.rename(out / name)
while not (out / "enough").exists():
    if (out / f"fail-{name}").exists():
        raise ValueError(f"on a bad day of {name}")
    if (out / f"leave-{name}").exists():
        sys.exit(0)
    time.sleep(0.005)
"""


@pytest.fixture
def out(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOM_PLANE", "0")
    monkeypatch.setenv("LOOM_WARM", "0")
    path = home.parent / "out"
    path.mkdir()
    return path


@pytest.fixture
def plane(out: Path) -> Iterator[FakeAgent]:
    with FakeAgent(settings.plane_dir() / UPLINK) as agent:
        yield agent


@pytest.fixture
def run(home: Path, out: Path) -> Iterator[Callable[..., str]]:
    """Start a run of three ranks, and return its id when all of them are there."""
    script = home.parent / "project" / "train.py"
    script.write_text(SCRIPT)
    runners: list[Runner] = []
    handles: list[str] = []

    def start(policy: str = "live", retries: int = 1, patience: float = 90.0) -> str:
        runner = get_runner()
        runners.append(runner)
        app = loom(script=str(script), j="1x3", env={"OUT": str(out)}, max_retries=retries)
        info = runner.dryrun(app, "local", {"grace": 3, "policy": policy})
        launch = replace(info.request.launch, live_patience=patience)
        info.request = replace(info.request, launch=launch)
        handles.append(runner.schedule(info))
        app_id = handles[-1].rpartition("/")[2]
        until(lambda: all(told(out, 0, rank) for rank in range(3)))
        return app_id

    yield start
    for runner, handle in zip(runners, handles, strict=True):
        runner.cancel(handle)
        runner.close()


@pytest.fixture
def watched(plane: FakeAgent, run: Callable[..., str]) -> str:
    """A run whose ends are the weaver's business."""
    app_id = run()
    watch(plane, app_id)
    return app_id


def watch(plane: FakeAgent, app_id: str) -> None:
    until(lambda: plane.lives)
    plane.watch()
    until(lambda: events(app_id, "watched"))


def told(out: Path, attempt: int, rank: int, life: int = 1) -> dict[str, Any] | None:
    """Return what a process wrote of itself: its pid and its variables."""
    path = out / f"{attempt}-{rank}-{life}"
    return json.loads(path.read_text()) if path.exists() else None


def there(out: Path, attempt: int, rank: int, life: int = 1) -> dict[str, Any]:
    until(lambda: told(out, attempt, rank, life))
    found = told(out, attempt, rank, life)
    assert found is not None
    return found


def process(pid: int) -> tuple[int, str] | None:
    """Return a pid and when the kernel started it; nothing for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (pid, fields[19]) if fields[0] != "Z" else None


def events(app_id: str, kind: str) -> list[dict[str, Any]]:
    found = [event for event in RunFolder.named(app_id).events() if event["event"] == kind]
    return [{k: v for k, v in event.items() if k not in ("time", "event")} for event in found]


def over(app_id: str) -> RunRecord:
    until(lambda: catalog.record(app_id).is_over())  # type: ignore[union-attr]
    record = catalog.record(app_id)
    assert record is not None
    assert record.wait_end(20)
    return record


def test_a_launch_says_who_it_is_and_which_processes_there_are(
    plane: FakeAgent, run: Callable[..., str]
) -> None:
    app_id = run()

    until(lambda: plane.lives)

    record = catalog.record(app_id)
    assert record is not None
    assert record.launcher is not None
    (register,), lives, node = plane.registers, plane.newest, host_name()
    head = register.head
    assert (head.job, head.generation, head.rank, head.role) == (app_id, 0, NO_RANK, "train")
    assert (register.pid, str(register.started)) == (record.launcher.pid, record.launcher.started)
    assert (register.attempt, register.world_size, lives.head) == (0, 3, head)
    assert lives.lives == tuple(ProcessReport(rank, 1, node) for rank in range(3))
    assert (lives.attempt, lives.room, lives.lost, lives.stored) == (0, {node: 3}, (), -1)


def test_a_run_of_another_policy_has_no_line_and_tells_its_ranks_nothing_of_lives(
    plane: FakeAgent, home: Path, out: Path
) -> None:
    script = home.parent / "project" / "quick.py"
    script.write_text(
        "import os; print([k for k in os.environ if k in ('LOOM_LIFE', 'LOOM_STANDIN')])"
    )
    with get_runner() as runner:
        app = loom(script=str(script), j="1x2")
        app_id = runner.run(app, "local", {"policy": "restart"}).rpartition("/")[2]

        record = over(app_id)

    logs = [(record.log_path(rank) / "stdout.log").read_text() for rank in record.ranks]
    assert (record.state, logs, plane.calls) == (AppState.SUCCEEDED, ["[]\n", "[]\n"], 0)


def test_a_rank_that_is_killed_gets_a_new_process_and_the_others_never_stop(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    before = {rank: process(there(out, 0, rank)["pid"]) for rank in range(3)}
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    ended = plane.until_ended(1, 1)
    waited = (
        plane.heard_at[plane.lives.index(plane.until_told(lambda x: x.lives[1].code))] - killed_at
    )

    for _ in range(3):  # an order may come twice
        plane.fork(1, 2, generation=1)
        plane.make_store(1)
    newcomer = there(out, 0, 1, 2)
    store = plane.until_told(lambda lives: lives.stored == 1).store

    others = {rank: process(there(out, 0, rank)["pid"]) for rank in (0, 2)}
    assert ended == ProcessReport(1, 1, host_name(), -signal.SIGKILL)
    assert others == {rank: before[rank] for rank in (0, 2)}
    assert store == f"file:///dev/shm/loom-{watched}-{os.getuid()}/train-g1"
    names = ("LOOM_LIFE", "LOOM_GENERATION", "LOOM_ATTEMPT", "LOOM_STANDIN")
    assert [newcomer[name] for name in names] == ["2", "1", "0", "1"]
    first = there(out, 0, 1)
    new = {"LOOM_LIFE", "LOOM_GENERATION", "LOOM_STANDIN", "LOOM_PAGE", "pid"}
    told = {k for k in {*first, *newcomer} if first.get(k) != newcomer.get(k)}
    assert {k for k in told if not k.endswith("_OWNER")} == new  # those have a pid in them
    assert waited < allowed(0.5)
    (out / "enough").touch()
    record = over(watched)
    assert (record.state, record.restarts, record.generation) == (AppState.SUCCEEDED, 0, 1)
    assert [(rank.life, rank.generation) for rank in record.ranks] == [(1, 0), (2, 1), (1, 0)]
    exits = [
        (e["local_rank"], e["attempt"], e["life"], e["generation"], e["code"])
        for e in events(watched, "exit")
    ]
    assert exits[0] == (1, 0, 1, 0, -9)
    assert sorted(exits[1:]) == [(0, 0, 1, 0, 0), (1, 0, 2, 1, 0), (2, 0, 1, 0, 0)]
    assert sorted(path.name for path in out.glob("0-*")) == ["0-0-1", "0-1-1", "0-1-2", "0-2-1"]
    assert (record.log_path(record.ranks[1]) / "stdout.log").read_text() == "life 1\nlife 2\n"


def test_ranks_that_leave_one_by_one_complete_the_run_when_all_have(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    for rank in (2, 0):
        (out / f"leave-0-{rank}-1").touch()
        plane.until_ended(rank, 1)
    state = catalog.record(watched)

    (out / "leave-0-1-1").touch()

    assert state is not None
    assert state.state is AppState.RUNNING
    record = over(watched)
    assert (record.state, record.restarts) == (AppState.SUCCEEDED, 0)


def test_live_that_cannot_go_on_is_a_restart_like_any_other(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    (out / "fail-0-2-1").touch()
    plane.until_ended(2, 1)
    plane.fork(2, 2, generation=4)
    pids = [there(out, 0, rank)["pid"] for rank in (0, 1)] + [there(out, 0, 2, 2)["pid"]]

    for _ in range(2):
        plane.restart("exit_code_1_rank_2", "live_wait")

    again = [there(out, 1, rank) for rank in range(3)]
    names = ("LOOM_GENERATION", "LOOM_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "LOOM_LIFE")
    assert [[one[name] for name in names] for one in again] == [["5", "1", "1", "1"]] * 3
    assert all("LOOM_STANDIN" not in one for one in again)
    until(lambda: not any(process(pid) for pid in pids))
    lives = plane.until_told(lambda lives: lives.attempt == 1)
    assert lives.lives == tuple(ProcessReport(rank, 1, host_name()) for rank in range(3))
    assert lives.head.generation == 5
    record = catalog.record(watched)
    assert record is not None
    assert (record.restarts, record.generation) == (1, 5)
    assert (record.first_error["rank"], record.first_error["attempt"]) == (2, 0)
    assert "on a bad day of 0-2-1" in record.first_error["traceback"]
    assert events(watched, "live_ended") == [{"reason": "exit_code_1_rank_2", "cause": "live_wait"}]
    assert events(watched, "restart") == [{"restarts": 1, "reason": "exit_code_1_rank_2"}]


def test_an_end_in_an_attempt_that_nobody_watches_is_the_launchs_own_business(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    os.kill(there(out, 0, 0)["pid"], signal.SIGKILL)
    plane.until_ended(0, 1)

    plane.watch(is_live=False)

    assert there(out, 1, 0)["LOOM_GENERATION"] == "1"
    assert events(watched, "restart") == [{"restarts": 1, "reason": "exit_signal_9_rank_0"}]
    os.kill(there(out, 1, 2)["pid"], signal.SIGKILL)
    record = over(watched)
    assert (record.state, record.reason) == (AppState.FAILED, "exit_signal_9_rank_2")


def test_without_a_word_of_a_weaver_the_launch_restarts_by_itself(
    plane: FakeAgent, run: Callable[..., str], out: Path
) -> None:
    app_id = run(patience=1.0)
    watch(plane, app_id)
    plane.hang_up()
    killed_at = time.monotonic()

    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)

    assert there(out, 1, 1)["LOOM_LIFE"] == "1"
    assert time.monotonic() - killed_at >= 1.0
    assert events(app_id, "restart") == [{"restarts": 1, "reason": "exit_signal_9_rank_1"}]


def test_words_of_a_weaver_keep_the_launch_from_restarting_by_itself(
    plane: FakeAgent, run: Callable[..., str], out: Path
) -> None:
    app_id = run(patience=0.5)
    watch(plane, app_id)
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)

    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        plane.answered(plane.watch)
    plane.fork(1, 2, generation=1)

    assert there(out, 0, 1, 2)["LOOM_LIFE"] == "2"
    assert events(app_id, "restart") == []


def test_an_agent_that_is_killed_meanwhile_has_a_successor_that_knows_newcomers(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)
    plane.fork(1, 2, generation=1)
    newcomer = there(out, 0, 1, 2)["pid"]
    ranks = {newcomer, *(there(out, 0, rank)["pid"] for rank in (0, 2))}
    before = {pid: process(pid) for pid in ranks}

    agent = kill_agent(watched, ranks)
    until(lambda: agent_of(watched, ranks) not in (None, agent))
    until(lambda: plane.answered(lambda: plane.make_store(1)).stored == 1)  # it has answered
    known = plane.life(1, 2)
    os.kill(newcomer, signal.SIGKILL)
    ended = plane.until_ended(1, 2)
    plane.fork(1, 3, generation=2)

    assert known == ProcessReport(1, 2, host_name())
    assert ended == ProcessReport(1, 2, host_name(), -signal.SIGKILL)
    assert there(out, 0, 1, 3)["LOOM_GENERATION"] == "2"
    others = ranks - {newcomer}
    assert {pid: process(pid) for pid in others} == {pid: before[pid] for pid in others}
    assert events(watched, "restart") == []


def test_a_newcomer_that_is_ordered_while_no_agent_is_there_comes_with_the_next_one(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    ranks = {there(out, 0, rank)["pid"] for rank in range(3)}
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)
    kill_agent(watched, ranks)

    plane.fork(1, 2, generation=1)

    assert there(out, 0, 1, 2)["LOOM_LIFE"] == "2"
    (out / "enough").touch()
    assert over(watched).state is AppState.SUCCEEDED


def test_one_life_is_ended_and_no_other(plane: FakeAgent, watched: str, out: Path) -> None:
    before = {rank: process(there(out, 0, rank)["pid"]) for rank in (0, 1)}

    plane.end_life(2, 1)
    ended = plane.until_ended(2, 1)
    plane.end_life(2, 2)  # one that there never was
    never = plane.until_ended(2, 2)
    for life in (2, 3):
        plane.fork(2, life, generation=1)

    assert there(out, 0, 2, 3)["LOOM_LIFE"] == "3"
    assert (ended.code, never.code) == (-signal.SIGKILL, -signal.SIGKILL)
    assert {rank: process(there(out, 0, rank)["pid"]) for rank in (0, 1)} == before
    assert told(out, 0, 2, 2) is None


def test_an_order_that_comes_again_when_its_process_has_ended_starts_nothing(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    plane.end_life(2, 1)
    plane.until_ended(2, 1)
    plane.fork(2, 2, generation=1)
    os.kill(there(out, 0, 2, 2)["pid"], signal.SIGKILL)
    plane.until_ended(2, 2)

    plane.answered(lambda: plane.fork(2, 2, generation=1))
    plane.fork(2, 3, generation=2)
    there(out, 0, 2, 3)

    ends = [(one.life, one.code) for one in plane.newest.lives if one.rank == 2]
    assert ends == [(1, -signal.SIGKILL), (2, -signal.SIGKILL), (3, None)]
    started = [one["life"] for event in events(watched, "started") for one in event["ranks"]]
    assert sorted(started) == [1, 1, 1, 2, 3]


def test_orders_of_an_old_weaver_an_old_generation_and_another_attempt_are_nothing(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)
    plane.epoch = 3
    plane.make_store(5)
    plane.until_told(lambda lives: lives.stored == 5)
    node = host_name()

    plane.epoch = 2
    plane.fork(1, 2, 9, node)  # an old weaver
    plane.epoch = 3
    plane.fork(1, 3, 4, node)  # an old generation
    plane.answered(plane.watch)
    plane.fork(1, 4, generation=5)

    there(out, 0, 1, 4)
    assert [(one.rank, one.life) for one in plane.newest.lives] == [(0, 1), (1, 1), (1, 4), (2, 1)]
    assert sorted(path.name for path in out.glob("0-1-*")) == ["0-1-1", "0-1-4"]


def test_a_fork_that_cannot_be_done_is_told(plane: FakeAgent, watched: str, out: Path) -> None:
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)

    plane.fork(1, 2, generation=1, node="nowhere")

    assert plane.until_ended(1, 2) == ProcessReport(
        1, 2, "nowhere", 1, why="there is no node nowhere"
    )


def test_a_line_that_breaks_is_there_again_and_tells_all(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    plane.hang_up()
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    until(lambda: events(watched, "exit"))
    plane.lives.clear()

    plane.listen()

    lives = plane.until_told(lambda lives: True)
    assert [one.code for one in lives.lives] == [None, -signal.SIGKILL, None]
    plane.fork(1, 2, generation=1)
    assert there(out, 0, 1, 2)["LOOM_LIFE"] == "2"


@pytest.mark.parametrize("is_recovering", [False, True])
def test_a_run_that_is_watched_can_be_cancelled(
    plane: FakeAgent, watched: str, out: Path, is_recovering: bool
) -> None:
    if is_recovering:
        os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
        plane.until_ended(1, 1)

    with get_runner() as runner:
        runner.cancel(f"local://torchx/{watched}")
    record = over(watched)

    assert (record.state, record.restarts) == (AppState.CANCELLED, 0)
    assert events(watched, "restart") == []
    until(lambda: not processes_of(watched))


def test_a_run_that_goes_on_later_has_a_generation_above_all_that_were_asked_for(
    plane: FakeAgent, watched: str, out: Path
) -> None:
    os.kill(there(out, 0, 1)["pid"], signal.SIGKILL)
    plane.until_ended(1, 1)
    plane.fork(1, 2, generation=4)
    there(out, 0, 1, 2)
    with get_runner() as runner:
        runner.cancel(f"local://torchx/{watched}")
    ended = over(watched)

    again = resumption.going_on(watched)

    assert (ended.restarts, ended.generation) == (0, 4)
    assert (again.attempt, again.generation) == (1, 5)
    first = resumption.first_record(ended, ended)
    assert (first.restarts, first.generation) == (1, 5)


def agent_of(app_id: str, ranks: set[int]) -> int | None:
    """Return the pid of a run's agent: the guard's child that is not the launch process.

    Reads /proc itself, so that it is no witness for the code it checks.
    """
    record = catalog.record(app_id)
    assert record is not None
    assert record.guard is not None
    assert record.launcher is not None
    children = Path(f"/proc/{record.guard.pid}/task/{record.guard.pid}/children").read_text()
    mine = {int(pid) for pid in children.split()} - {record.launcher.pid} - ranks
    found = [pid for pid in mine if process(pid) and not _has_children_of(pid, ranks)]
    return min(found) if found else None


def _has_children_of(pid: int, ranks: set[int]) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return bool({int(child) for child in children} & ranks)


def kill_agent(app_id: str, ranks: set[int]) -> int:
    agent = agent_of(app_id, ranks)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    return agent
