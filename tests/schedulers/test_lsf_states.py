"""How LSF's answers are read: records of `bjobs -json`, as the command reference has them."""

import json
from typing import Any

import pytest

from torchloom.errors import LoomError
from torchloom.schedulers.batch.status import EngineJob
from torchloom.schedulers.lsf_scheduler import REASONS, STATES, after_a_rerun, question, read
from torchloom.specs.api import AppState


def record(**fields: str) -> dict[str, str]:
    known = {"JOBID": "7", "JOBINDEX": "0", "STAT": "RUN", "EXIT_CODE": "", "EXIT_REASON": ""}
    known |= {"EXEC_HOST": "2*n1:2*n2", "PEND_REASON": "", "JOB_NAME": "app"}
    return known | {name.upper(): value for name, value in fields.items()}


def printed(*records: dict[str, Any]) -> str:
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2)


def one(**fields: str) -> EngineJob:
    (job,) = read(printed(record(**fields))).values()
    return job


def test_one_question_is_about_all_jobs_of_a_user() -> None:
    words = question("me")

    assert words[:6] == ["bjobs", "-a", "-X", "-json", "-u", "me"]
    assert words[6] == "-o"
    assert len(words) == 8


@pytest.mark.parametrize(
    ("state", "reason", "expected", "why"),
    [
        ("PEND", "", AppState.PENDING, ""),
        ("PSUSP", "", AppState.PENDING, "held"),
        ("PROV", "", AppState.PENDING, "provisioning"),
        ("RUN", "", AppState.RUNNING, ""),
        ("USUSP", "", AppState.PENDING, "suspended"),
        ("SSUSP", "", AppState.PENDING, "suspended_by_system"),
        ("DONE", "", AppState.SUCCEEDED, ""),
        ("EXIT", "", AppState.FAILED, ""),
        ("EXIT", "TERM_UNKNOWN: unknown reason", AppState.FAILED, ""),
        (
            "EXIT",
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
            AppState.FAILED,
            "time_limit",
        ),
        ("EXIT", "TERM_OWNER: job killed by owner", AppState.CANCELLED, "cancelled"),
        ("EXIT", "TERM_ADMIN: job killed by root", AppState.CANCELLED, "cancelled_by_admin"),
        ("EXIT", "TERM_PREEMPT: job killed after preemption", AppState.FAILED, "preempted"),
        ("EXIT", "TERM_REQUEUE_OWNER: job killed and requeued", AppState.PENDING, "requeued"),
        ("EXIT", "TERM_MEMLIMIT: job killed", AppState.FAILED, "out_of_memory"),
        ("EXIT", "TERM_ZOMBIE: job exited", AppState.FAILED, "node_failure"),
        ("EXIT", "TERM_NEWS: of a later release", AppState.FAILED, "news"),
        ("ZOMBI", "", AppState.FAILED, "zombie"),
        ("UNKWN", "", AppState.UNKNOWN, "host_unreachable"),
        ("WARPED", "", AppState.UNKNOWN, "warped"),
    ],
)
def test_states_are_told_apart(state: str, reason: str, expected: AppState, why: str) -> None:
    job = one(stat=state, exit_reason=reason)

    assert (job.state, job.why) == (expected, why)


def test_no_two_ends_have_one_word() -> None:
    ends = [why for _, why in (*STATES.values(), *REASONS.values()) if why]

    assert len(set(ends)) == len(ends)


def test_hosts_exit_codes_and_names_are_read() -> None:
    assert one(exit_code="130", job_name='a "b" c') == EngineJob(
        id="7",
        state=AppState.RUNNING,
        native="RUN",
        hosts=("n1", "n2"),
        exit_code=130,
        name='a "b" c',
    )
    assert one(exec_host="n1:n1:n2").hosts == ("n1", "n2")
    assert one(exec_host="-").hosts == ()


def test_what_a_job_waits_for_is_in_lsfs_own_words() -> None:
    waits = one(stat="PEND", pend_reason="Not enough\n  job slot(s): 4 hosts;")

    assert waits.why == "Not enough job slot(s): 4 hosts;"
    assert after_a_rerun(waits).why == "requeued: Not enough job slot(s): 4 hosts;"
    assert after_a_rerun(one(stat="PEND")).why == "requeued"
    assert after_a_rerun(one()).why == ""


def test_the_elements_of_an_array_are_one_job() -> None:
    elements = [
        record(jobindex="10", stat="PEND", exec_host="", job_name="many[10]"),
        record(jobindex="2", stat="RUN", exec_host="n2", job_name="many[2]"),
        record(jobindex="1", stat="DONE", exec_host="n1", job_name="many[1]"),
    ]

    (job,) = read(printed(*elements)).values()

    assert (job.id, job.state, job.name) == ("7", AppState.RUNNING, "many")
    assert job.hosts == ("n1", "n2")
    assert [task.id for task in job.tasks] == ["7[1]", "7[2]", "7[10]"]


def test_an_array_has_failed_once_all_is_over_and_an_element_has() -> None:
    limit = "TERM_RUNLIMIT: job killed after reaching LSF run time limit"
    elements = [
        record(jobindex="1", stat="DONE"),
        record(jobindex="2", stat="EXIT", exit_reason=limit),
        record(jobindex="3", stat="EXIT", exit_reason="TERM_OWNER: job killed by owner"),
    ]

    (job,) = read(printed(*elements)).values()

    assert (job.state, job.why) == (AppState.FAILED, "time_limit")


def test_what_is_no_job_says_nothing_and_what_is_no_answer_is_an_error() -> None:
    assert read("") == {}
    assert read(printed()) == {}
    assert read(printed({"JOBID": "9", "ERROR": "Job <9> is not found"})) == {}
    with pytest.raises(LoomError, match=r"printed no JSON but 'JOBID USER'; LSF 10\.1"):
        read("JOBID USER\n")
