"""Strikes at the database: a real Postgres is killed and comes up again with what it had."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from torchloom.chaos.faults import actions, processes
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike

from ...harness.postgres_server import running_postgres
from .standins import StandIns

Make = Callable[..., StandIns]
KILL = Fault(0.0, "kill-postgres")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a Postgres that the environment names; end whoever listens there at last."""
    with running_postgres() as url:
        monkeypatch.setenv(processes.VARIABLE, url)
        try:
            yield url
        finally:
            if (process := processes.listener(url)) is not None:
                process.send(signal.SIGQUIT)
                process.wait_exit(30)


def ask(url: str, words: str) -> list[tuple[object, ...]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(words.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.process
def test_a_database_is_killed_and_started_again(server: str, standins: Make) -> None:
    job = standins(ranks=1)
    ask(server, "create table kept (n int)")
    ask(server, "insert into kept values (7)")
    actions.check([KILL], job.victim)
    aim = actions.aim(KILL, job.victim)
    assert aim is not None
    assert aim.undo is not None
    assert aim.process is not None

    told = actions.strike(Strike(0, "kill-postgres", 0.0), aim)
    os.waitpid(aim.process.pid, 0)  # a child of ours that nobody took note of is in its way
    gone = processes.listener(server)
    for _ in range(2):
        actions.undo(aim.undo)
    back = processes.listener(server)

    assert (told.outcome, aim.target.what, gone) == ("struck", "postgres", None)
    assert back is not None
    assert back.pid != aim.process.pid
    assert ask(server, "select n from kept") == [(7,)]
    assert "loom@" not in str(dict(aim.undo))  # whose it is, is no part of the note


def test_a_plane_that_keeps_files_has_no_database_to_kill(
    standins: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(processes.VARIABLE, raising=False)

    with pytest.raises(NotPossible, match="stores its state in files; kill-postgres needs LOOM_"):
        actions.check([KILL], standins().victim)


@pytest.mark.parametrize("url", ["postgresql://u:p@db.example/x", "postgresql:///x?host=/nowhere"])
def test_a_database_elsewhere_is_refused(
    url: str, standins: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.VARIABLE, url)

    with pytest.raises(NotPossible, match="no Postgres of this machine listens"):
        actions.check([KILL], standins().victim)
    assert actions.aim(KILL, standins(job="train-b").victim) is None
