"""A series: every fault at its time, written down before and after, undone whatever happens."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.chaos.faults import processes
from torchloom.chaos.faults.actions import aim
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import FILE, Chaos, SeriesHead, Strike, Target
from torchloom.chaos.series import AlreadyThere, FaultSeries, RecoveryWatch, TimedSight, alone
from torchloom.chaos.targets import JobSight
from torchloom.chaos.undo import FOLDER, UndoNotes

from .standins import StandIns, state_of

Make = Callable[..., StandIns]
Until = Callable[..., object]
HEAD = SeriesHead("c0ffee", "train-a", 7, 1.0, 1)
GONE = Fault(0.0, "kill", rank=9)


class Witness:
    """A judge that only remembers what it was shown."""

    def __init__(self) -> None:
        self.heads: list[SeriesHead] = []
        self.strikes: list[Strike] = []

    def begin(self, head: SeriesHead) -> None:
        self.heads.append(head)

    def judge(self, strike: Strike) -> Sequence[str]:
        self.strikes.append(strike)
        return ()

    def end(self, chaos: Chaos) -> Mapping[str, Any]:
        return {"ok": True}


def lines(job: StandIns) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.folder.path / FILE).read_text().splitlines()]


@pytest.mark.process
def test_faults_are_struck_in_order_and_written_down_before_and_after(standins: Make) -> None:
    job, witness = standins(ranks=2), Witness()
    first = {rank: one.pid for rank, one in job.processes.items()}
    plan = [Fault(0.0, "kill", rank=1), Fault(0.05, "stop", rank=0, lasts=0.2), GONE]

    found = FaultSeries(job.victim, plan, witness, HEAD, see=job.sees()).run()

    assert [(one.n, one.kind, one.outcome) for one in found.strikes] == [
        (0, "kill", "struck"),
        (1, "stop", "struck"),
        (2, "kill", "missed"),
    ]
    assert (found.head, found.why) == (HEAD, "faults")
    assert [one.target.pid for one in found.strikes if one.target] == [first[1], first[0]]
    assert job.processes[1].pid != first[1]
    assert job.processes[0].pid == first[0]
    told = [(line["n"], line["outcome"]) for line in lines(job)[1:-1]]
    assert [one for one in told if one[0] == 0] == [(0, "planned"), (0, "struck"), (0, "struck")]
    assert [one for one in told if one[0] == 2] == [(2, "planned"), (2, "missed")]
    assert state_of(first[0]) == "S"
    assert sorted(one.n for one in witness.strikes) == [0, 1, 2]
    assert all(one.recovered_at for one in witness.strikes if one.outcome == "struck")
    assert [one.recovered_at for one in witness.strikes if one.outcome == "missed"] == [None]


@pytest.mark.process
def test_what_lasts_is_undone_before_the_job_counts_as_recovered(standins: Make) -> None:
    job = standins(ranks=1)
    plan = [Fault(0.0, "stop", rank=0, lasts=0.3)]

    (one,) = FaultSeries(job.victim, plan, Witness(), HEAD, see=job.sees()).run().strikes

    assert one.struck_at
    assert one.undone_at
    assert one.recovered_at
    assert one.struck_at + 0.29 < one.undone_at <= one.recovered_at
    assert list((job.folder.path / FOLDER).iterdir()) == []


@pytest.mark.process
def test_a_job_that_does_not_recover_ends_the_series(standins: Make) -> None:
    job, witness = standins(ranks=2), Witness()
    plan = [Fault(0.0, "kill", rank=1), Fault(600.0, "kill", rank=0)]

    found = FaultSeries(job.victim, plan, witness, HEAD, limit=0.2, see=lambda: None).run()

    assert (found.why, [one.recovered_at for one in found.strikes]) == ("not recovered", [None])
    assert witness.strikes == list(found.strikes)
    assert job.processes[0].poll() is None


@pytest.mark.process
def test_a_job_that_is_over_is_not_struck_any_more(standins: Make) -> None:
    job = standins(ranks=1)

    found = FaultSeries(job.victim, [GONE], Witness(), HEAD, see=job.sees("COMPLETED")).run()

    assert (found.why, found.strikes) == ("job over", ())


@pytest.mark.process
def test_faults_behind_the_end_of_the_time_are_not_struck(standins: Make) -> None:
    job = standins(ranks=1)
    plan = [GONE, Fault(600.0, "kill", rank=0)]

    found = FaultSeries(job.victim, plan, Witness(), HEAD, until=0.1, see=job.sees()).run()

    assert (found.why, len(found.strikes)) == ("time", 1)
    assert job.processes[0].poll() is None


@pytest.mark.process
def test_an_interrupted_series_undoes_what_it_did(standins: Make, until: Until) -> None:
    job = standins(ranks=1)
    pid = job.processes[0].pid

    def interrupt(strike: Strike) -> None:
        until(lambda: state_of(pid) == "T")
        raise KeyboardInterrupt

    plan = [Fault(0.0, "stop", rank=0, lasts=600)]
    series = FaultSeries(job.victim, plan, Witness(), HEAD, show=interrupt, see=job.sees())
    with pytest.raises(KeyboardInterrupt):
        series.run()

    until(lambda: state_of(pid) == "S")
    assert lines(job)[-1]["why"] == "interrupted"


KILLED = """
import sys
from pathlib import Path
from torchloom.chaos.undo import Guardian
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import SeriesHead
from torchloom.chaos.series import FaultSeries
from torchloom.chaos.targets import Victim

class Nobody:
    def begin(self, head): pass
    def judge(self, strike): return ()
    def end(self, chaos): return {}

victim = Victim(sys.argv[1], Path(sys.argv[2]))
with Guardian(victim.folder):
    head = SeriesHead("c", victim.job, None, 0.0, 1)
    FaultSeries(victim, [Fault(0.0, "stop", rank=0, lasts=600)], Nobody(), head).run()
"""


@pytest.mark.process
def test_a_series_that_is_killed_leaves_nothing_as_its_guardian_undoes_it(
    standins: Make, until: Until
) -> None:
    job = standins(ranks=1)
    pid = job.processes[0].pid
    words = [sys.executable, "-c", KILLED, job.job, str(job.folder.path)]
    with subprocess.Popen(words, start_new_session=True) as series:
        until(lambda: state_of(pid) == "T")

        os.killpg(series.pid, signal.SIGKILL)

    until(lambda: state_of(pid) == "S")
    until(lambda: not list((job.folder.path / FOLDER).iterdir()))


@pytest.mark.process
def test_the_next_series_undoes_what_one_without_its_guardian_left(
    standins: Make, until: Until
) -> None:
    job = standins(ranks=1)
    found = aim(Fault(0.0, "stop", rank=0), job.victim)
    assert found is not None
    assert found.undo is not None
    assert found.process is not None
    UndoNotes(job.folder.path).write(3, found.undo)
    assert processes.sending(signal.SIGSTOP)(found)
    until(lambda: state_of(found.target.pid or 0) == "T")

    class Early(Witness):
        def begin(self, head: SeriesHead) -> None:
            until(lambda: state_of(found.target.pid or 0) == "S")
            super().begin(head)

    witness = Early()
    FaultSeries(job.victim, [GONE], witness, HEAD, see=job.sees()).run()

    assert witness.heads == [HEAD]
    assert list((job.folder.path / FOLDER).iterdir()) == []


def test_two_series_at_once_are_refused(standins: Make) -> None:
    job = standins()

    with alone(job.victim), pytest.raises(AlreadyThere), alone(job.victim):
        pass

    with alone(job.victim):
        pass


# When a job counts as recovered.

PIDS = {0: 100, 1: 101}


def look(at: float, *steps: int | None, pids: Mapping[int, int] = PIDS, **more: Any) -> TimedSight:
    numbered: dict[int, int | None] = dict(enumerate(steps))
    told: dict[str, Any] = {"state": "RUNNING", "generation": 1, **more}
    return TimedSight(at, JobSight(steps=numbered, pids=pids, size=2, **told))


def test_a_job_goes_on_when_all_ranks_take_steps_after_the_hit() -> None:
    watch = RecoveryWatch()
    watch.hit(Strike(0, "stop", 0.0, target=Target("rank", 1, 101)), now=10.0)

    said = [
        watch.has_recovered(one)
        for one in (look(9.9, 50, 50), look(10.1, 7, 7), look(10.2, 9, 8), look(10.3, 9, 9))
    ]

    assert said == [False, False, False, True]


def test_a_rank_that_was_killed_must_be_another_process() -> None:
    watch = RecoveryWatch()
    watch.hit(Strike(0, "kill", 0.0, target=Target("rank", 1, 101)), now=10.0)

    before = [watch.has_recovered(look(at, at, at)) for at in (11, 21, 31)]
    other = {0: 100, 1: 201}
    after = [watch.has_recovered(look(at, at, at, pids=other)) for at in (41, 43)]

    assert (before, after) == ([False] * 3, [False, True])


@pytest.mark.parametrize(
    "one",
    [
        TimedSight(12.0, None),
        look(12.0, 9, None),
        look(12.0, 9, 9, state="RECOVERING"),
        look(12.0, 9, 9, has_plane=False),
    ],
)
def test_steps_before_a_time_when_it_was_not_whole_do_not_count(one: TimedSight) -> None:
    watch = RecoveryWatch()
    watch.hit(Strike(0, "kill-nats", 0.0, target=Target("nats", pid=7)), now=10.0)

    said = [watch.has_recovered(each) for each in (look(11.0, 7, 7), one, look(13.0, 9, 9))]

    assert said == [False, False, False]
    assert watch.has_recovered(look(14.0, 11, 11))


def test_a_torn_line_is_left_out_and_the_last_series_is_read(tmp_path: Path) -> None:
    from torchloom.chaos.record import read, read_all

    path = tmp_path / FILE
    head = '{"chaos": "%s", "job": "j", "seed": null, "began": 1.0, "faults": 1, "plan": []}'
    strike = '{"n": 0, "kind": "kill", "planned_at": 1.5, "outcome": "%s", "new_field": 1}'
    texts = [head % "a", strike % "planned", '{"ended": 2.0, "why": "interrupted"}', head % "b"]
    path.write_text("\n".join([*texts, strike % "planned", strike % "struck", '{"n": 1, "ki']))

    found = read_all(path)

    assert [one.why for one in found] == ["interrupted", ""]
    assert [[each.outcome for each in one.strikes] for one in found] == [["planned"], ["struck"]]
    assert read(path) == found[1]
    assert read(tmp_path / "none") == Chaos()
