"""Which job and which processes are meant: only living ones of this user's jobs, never another."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from torchloom.chaos import targets
from torchloom.chaos.targets import JobSight, NotYours, TargetOver, Victim
from torchloom.errors import Ambiguous, NotFound
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.specs.api import AppState

from .standins import StandIns

Make = Callable[..., StandIns]
WHOLE = JobSight("RUNNING", 2, {0: 7, 1: 8}, {0: 100, 1: 101}, 2)


def test_a_job_that_runs_is_found_by_all_its_names(standins: Make) -> None:
    job = standins(ranks=1)

    found = [targets.find(name) for name in ("train-a", "train", "@", None, "local:///train-a")]

    assert found == [Victim("train-a", job.folder.path)] * 5


def test_a_job_that_is_over_is_refused(standins: Make) -> None:
    standins().write(AppState.SUCCEEDED)

    with pytest.raises(TargetOver, match=r"train-a has ended \(succeeded\); name a running job"):
        targets.find("train-a")


def test_somebody_elses_job_is_refused(standins: Make) -> None:
    standins(owner="ada")

    with pytest.raises(NotYours, match="train-a belongs to ada; only ada may"):
        targets.find("train-a")


def test_several_jobs_that_may_be_meant_are_listed(standins: Make) -> None:
    standins(job="train-a1")
    standins(job="train-a2")

    with pytest.raises(Ambiguous, match="train-a1"):
        targets.find("train-a")
    with pytest.raises(Ambiguous):
        targets.find(None)
    with pytest.raises(NotFound):
        targets.find("other")


def test_the_ranks_are_the_processes_that_live(standins: Make) -> None:
    job = standins(ranks=3)
    job.processes[1].kill()
    job.processes[1].wait()

    found = job.victim.ranks()

    assert {rank: one.pid for rank, one in found.items()} == {
        0: job.processes[0].pid,
        2: job.processes[2].pid,
    }


def test_a_pid_that_another_process_has_by_now_is_no_rank(standins: Make) -> None:
    job = standins(ranks=1)
    record = job.folder.record()
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    other = replace(mine, started=str(int(mine.started) + 1))
    job.folder.write_record(replace(record, ranks=(replace(record.ranks[0], process=other),)))

    assert job.victim.ranks() == {}


def test_a_process_of_another_host_is_no_rank_here(standins: Make) -> None:
    job = standins(ranks=1)
    record = job.folder.record()
    process = record.ranks[0].process
    assert process is not None
    away = replace(record.ranks[0], process=replace(process, host="elsewhere"))
    job.folder.write_record(replace(record, ranks=(away,)))

    assert job.victim.ranks() == {}


def test_a_job_is_whole_when_each_rank_is_up_and_steps() -> None:
    assert WHOLE.is_whole
    assert WHOLE.step == 7
    assert not replace(WHOLE, state="RECOVERING").is_whole
    assert not replace(WHOLE, steps={0: 7, 1: None}).is_whole
    assert not replace(WHOLE, steps={0: 7}).is_whole
    assert not replace(WHOLE, has_plane=False).is_whole
    assert replace(WHOLE, state="FAILED").is_over


def test_without_a_plane_there_are_no_parts_and_nothing_is_seen(standins: Make) -> None:
    assert [targets.part(name) for name in targets.PARTS] == [None] * 3
    assert standins(ranks=1).victim.see() is None
