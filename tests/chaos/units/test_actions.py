"""Strikes at processes: the very one that was meant, undone in the end, missed when it is gone."""

import signal
import sys
from collections.abc import Callable

import pytest

from torchloom.chaos.faults import actions
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike, Target
from torchloom.launch.host.identity import host_name

from .standins import LISTENING, StandIns, python, state_of

pytestmark = pytest.mark.process
Make = Callable[..., StandIns]
Until = Callable[..., object]
KILL = Fault(0.0, "kill", rank=1)


def struck(fault: Fault, job: StandIns) -> Strike:
    planned = Strike(0, fault.kind, fault.at)
    return actions.strike(planned, actions.aim(fault, job.victim))


def test_a_rank_is_killed_and_no_other(standins: Make) -> None:
    job = standins(ranks=2)
    process = job.victim.ranks()[1]

    told = struck(KILL, job)

    target = Target("rank", 1, process.pid, process.started, host_name())
    assert (told.outcome, told.target) == ("struck", target)
    assert job.processes[1].wait() == -signal.SIGKILL
    assert job.processes[0].poll() is None


def test_a_rank_that_is_gone_is_missed(standins: Make) -> None:
    job = standins(ranks=2)
    aim = actions.aim(KILL, job.victim)
    job.processes[1].kill()
    job.processes[1].wait()

    between = actions.strike(Strike(0, "kill", 0.0), aim)
    before = struck(KILL, job)

    assert (between.outcome, between.struck_at) == ("missed", None)
    assert between.why == "the target was already gone"
    assert (before.outcome, before.target) == ("missed", None)
    assert before.why == "nothing to hit: rank does not exist"


def test_a_rank_is_stopped_and_goes_on_when_that_is_undone(standins: Make, until: Until) -> None:
    job = standins(ranks=1)
    pid = job.processes[0].pid
    aim = actions.aim(Fault(0.0, "stop", rank=0), job.victim)
    assert aim is not None
    assert aim.undo is not None

    told = actions.strike(Strike(0, "stop", 0.0), aim)
    until(lambda: state_of(pid) == "T")
    actions.undo(aim.undo)
    actions.undo(aim.undo)

    assert told.outcome == "struck"
    until(lambda: state_of(pid) == "S")


def test_what_stopped_and_died_needs_no_undoing(standins: Make) -> None:
    job = standins(ranks=1)
    aim = actions.aim(Fault(0.0, "stop", rank=0), job.victim)
    assert aim is not None
    assert aim.undo is not None
    job.processes[0].kill()
    job.processes[0].wait()

    actions.undo(aim.undo)


def test_a_rank_that_listens_hears_that_it_is_to_raise(standins: Make) -> None:
    job = standins()
    listening = job.start(0, *python(LISTENING), stdout=-1)
    assert listening.stdout is not None
    assert listening.stdout.readline() == b"ready\n"

    told = struck(Fault(0.0, "raise", rank=0), job)

    assert told.outcome == "struck"
    assert listening.stdout.readline() == b"heard\n"
    assert listening.poll() is None


def test_a_rank_that_does_not_listen_is_not_sent_a_signal_to_die_of(standins: Make) -> None:
    job = standins(ranks=1)
    fault = Fault(0.0, "raise", rank=0)

    told = struck(fault, job)

    assert told.outcome == "missed"
    assert job.processes[0].poll() is None
    with pytest.raises(NotPossible, match=r"rank 0 is not in `run.steps\(\)`"):
        actions.check([fault], job.victim)


def test_a_plan_is_refused_as_a_whole_before_anything_is_struck(standins: Make) -> None:
    job = standins(ranks=2)
    plan = [KILL, Fault(1.0, "kill", rank=7), Fault(2.0, "kill-weaver"), Fault(3.0, "kill", rank=7)]

    with pytest.raises(NotPossible) as refused:
        actions.check(plan, job.victim)

    assert refused.value.problems == (
        "no rank 7 runs here; there are 0, 1",
        "the plane has no weaver here; `loom up` starts one",
    )
    assert [one.poll() for one in job.processes.values()] == [None, None]


def test_a_plan_that_can_be_done_is_not_refused(standins: Make) -> None:
    job = standins(ranks=2)

    actions.check([KILL, Fault(1.0, "stop", rank=0), Fault(2.0, "kill")], job.victim)


PROGRAM = """
import sys, torchloom
run = torchloom.init()
done = []
try:
    for step in run.steps(10 ** 7):
        with step:
            if step.number == 0:
                print("ready", flush=True)
            done.append(step.number)
except RuntimeError as error:
    print(type(error).__name__, error, done[-1] == step.number, step.is_done, flush=True)
"""


def test_a_program_raises_in_one_of_its_steps(standins: Make) -> None:
    job = standins()
    program = job.start(0, sys.executable, "-c", PROGRAM, stdout=-1)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"

    told = struck(Fault(0.0, "raise", rank=0), job)
    said = program.stdout.readline().decode()

    assert told.outcome == "struck"
    assert said.startswith("Provoked step ")
    assert said.endswith(": provoked by `loom chaos` True False\n")
    assert program.wait() == 0
