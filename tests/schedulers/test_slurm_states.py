"""How Slurm's answers are read: lines of a 22.05, with the fields that 23 to 25 have too."""

import pytest

from torchloom.schedulers.batch.status import EngineJob
from torchloom.schedulers.slurm_scheduler import SEPARATOR, STATES, question, read
from torchloom.specs.api import AppState


def line(
    job: str = "7",
    state: str = "RUNNING",
    reason: str = "None",
    nodes: str = "n[1-2]",
    restarts: str = "0",
    code: str = "0",
    het: str = "N/A",
    offset: str = "N/A",
    name: str = "app",
) -> str:
    words = (job, state, reason, nodes, restarts, code, het, offset, name)
    return "".join(f"{word}{SEPARATOR}" for word in words) + "\n"


def one(**fields: str) -> EngineJob:
    (job,) = read(line(**fields)).values()
    return job


def test_one_question_is_about_all_jobs_of_a_user() -> None:
    words = question("me")

    assert words[:4] == ["squeue", "--noheader", "--states=all", "--user=me"]
    assert len(words) == 5


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "expected", "why"),
    [
        ("PENDING", "Resources", "0", AppState.PENDING, "Resources"),
        ("PENDING", "BeginTime", "1", AppState.PENDING, "requeued: BeginTime"),
        ("REQUEUED", "None", "1", AppState.PENDING, "requeued"),
        ("REQUEUE_HOLD", "None", "0", AppState.PENDING, "requeued_held"),
        ("CONFIGURING", "None", "0", AppState.PENDING, "configuring"),
        ("SUSPENDED", "None", "0", AppState.PENDING, "suspended"),
        ("RUNNING", "None", "2", AppState.RUNNING, ""),
        ("COMPLETING", "None", "0", AppState.RUNNING, "completing"),
        ("COMPLETED", "None", "0", AppState.SUCCEEDED, ""),
        ("CANCELLED", "None", "0", AppState.CANCELLED, "cancelled"),
        ("CANCELLED by 1000", "None", "0", AppState.CANCELLED, "cancelled"),
        ("FAILED", "NonZeroExitCode", "0", AppState.FAILED, ""),
        ("TIMEOUT", "TimeLimit", "0", AppState.FAILED, "time_limit"),
        ("PREEMPTED", "None", "0", AppState.FAILED, "preempted"),
        ("NODE_FAIL", "NodeDown", "0", AppState.FAILED, "node_failure"),
        ("OUT_OF_MEMORY", "OutOfMemory", "0", AppState.FAILED, "out_of_memory"),
        ("DEADLINE", "None", "0", AppState.FAILED, "deadline"),
        ("BOOT_FAIL", "None", "0", AppState.FAILED, "boot_failure"),
        ("OOM", "None", "0", AppState.FAILED, "out_of_memory"),
        ("WARPED", "None", "0", AppState.UNKNOWN, "warped"),
    ],
)
def test_states_are_told_apart(
    state: str, reason: str, restarts: str, expected: AppState, why: str
) -> None:
    job = one(state=state, reason=reason, restarts=restarts)

    assert (job.state, job.why) == (expected, why)


def test_no_two_failures_have_one_word() -> None:
    failures = [why for state, why in STATES.values() if state is AppState.FAILED]

    assert len(set(failures)) == len(failures)


def test_hosts_restarts_exit_codes_and_names_are_read() -> None:
    found = one(nodes="n[1-2],gpu7", restarts="3", code="1792", name="a b|c,d")

    assert found == EngineJob(
        id="7",
        state=AppState.RUNNING,
        native="RUNNING",
        hosts=("n1", "n2", "gpu7"),
        restarts=3,
        exit_code=7,
        name="a b|c,d",
    )
    assert one(code="9").exit_code == 137


def test_the_tasks_of_an_array_are_one_job() -> None:
    text = line("2_0", "COMPLETED", nodes="n1") + line("2_1", "RUNNING", nodes="n2")

    (job,) = read(text + line("2_[2-9%4]", "PENDING", nodes="")).values()

    assert (job.id, job.state, job.hosts) == ("2", AppState.RUNNING, ("n1", "n2"))
    assert [task.id for task in job.tasks] == ["2_0", "2_1", "2_[2-9%4]"]


def test_an_array_has_failed_once_all_is_over_and_a_task_has() -> None:
    text = line("2_0", "COMPLETED") + line("2_1", "TIMEOUT") + line("2_2", "CANCELLED")

    (job,) = read(text).values()

    assert (job.state, job.why) == (AppState.FAILED, "time_limit")


def test_the_parts_of_a_heterogeneous_job_are_one() -> None:
    text = line("9+0", het="9", offset="0", nodes="n1") + line("9+1", het="9", nodes="n[2-3]")

    (job,) = read(text).values()

    assert (job.id, job.hosts) == ("9", ("n1", "n2", "n3"))


def test_what_is_no_line_of_a_job_says_nothing() -> None:
    assert read("") == {}
    assert read("squeue: error: something\n\n") == {}
