"""How PBS's answers are read: JSON as `qstat -x -t -f -F json` of OpenPBS 23 prints it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import LoomError
from torchloom.schedulers.batch.commands import EngineCommands, EngineRefused
from torchloom.schedulers.batch.index import Index, IndexEntry
from torchloom.schedulers.batch.status import EngineJob
from torchloom.schedulers.pbs_scheduler import (
    ENDS,
    STATES,
    PbsScheduler,
    number,
    question,
    read,
    seconds,
)
from torchloom.specs.api import AppState

PENDING, RUNNING, FAILED = AppState.PENDING, AppState.RUNNING, AppState.FAILED
RAN = "Job run at Mon Nov 16 at 23:00 on (n1:ncpus=1)"
NO_ROOM = "Not Running: Insufficient amount of resource: ncpus"


def answer(**jobs: dict[str, Any]) -> str:
    told = {f"{name.replace('_', '')}.ctl": job for name, job in jobs.items()}
    return json.dumps({"timestamp": 1, "pbs_version": "23.06.06", "Jobs": told})


def one(**fields: Any) -> EngineJob:
    job = {"Job_Name": "app", "job_state": "R", "exec_host": "n1/0", **fields}
    (found,) = read(answer(_7={k: v for k, v in job.items() if v is not None})).values()
    return found


def ended(status: int | None, comment: str = RAN, **fields: Any) -> EngineJob:
    return one(job_state="F", Exit_status=status, comment=comment, **fields)


def test_one_question_is_about_any_number_of_jobs_and_their_tasks() -> None:
    assert question(["1", "2[]"]) == ["qstat", "-x", "-t", "-f", "-F", "json", "1", "2[]"]


@pytest.mark.parametrize(
    ("fields", "state", "why"),
    [
        ({"job_state": "Q"}, PENDING, ""),
        ({"job_state": "Q", "comment": NO_ROOM}, PENDING, NO_ROOM[13:]),
        ({"job_state": "Q", "run_count": 1}, PENDING, "requeued"),
        (
            {"job_state": "Q", "run_count": 2, "comment": NO_ROOM},
            PENDING,
            f"requeued: {NO_ROOM[13:]}",
        ),
        ({"job_state": "H", "Hold_Types": "u"}, PENDING, "held"),
        ({"job_state": "H", "Hold_Types": "o"}, PENDING, "held_by_operator"),
        ({"job_state": "H", "Hold_Types": "s"}, PENDING, "held_by_system"),
        ({"job_state": "H", "Hold_Types": "s", "depend": "afterok:1"}, PENDING, "dependency"),
        (
            {
                "job_state": "H",
                "Hold_Types": "s",
                "run_count": 21,
                "comment": "job held, too many failed attempts to run",
            },
            PENDING,
            "requeued: held_by_system: job held, too many failed attempts to run",
        ),
        ({"job_state": "W"}, PENDING, "begin_time"),
        ({"job_state": "T"}, PENDING, "in_transit"),
        ({"job_state": "S", "comment": RAN}, PENDING, "suspended"),
        ({"job_state": "R", "comment": RAN}, RUNNING, ""),
        ({"job_state": "R", "run_count": 3}, RUNNING, ""),
        ({"job_state": "E"}, RUNNING, "completing"),
        ({"job_state": "%"}, AppState.UNKNOWN, "%"),
    ],
)
def test_jobs_that_are_not_over_are_told_apart(
    fields: dict[str, Any], state: AppState, why: str
) -> None:
    job = one(**fields)

    assert (job.state, job.why, job.native) == (state, why, fields["job_state"])


USED = {"resources_used": {"walltime": "01:00:03"}, "Resource_List": {"walltime": "01:00:00"}}


@pytest.mark.parametrize(
    ("job", "state", "why"),
    [
        (ended(0), AppState.SUCCEEDED, ""),
        (ended(7, f"{RAN} and failed", substate=93), FAILED, ""),
        (ended(265, f"{RAN} and failed", substate=93), FAILED, "signal_9"),
        (ended(271, f"{RAN} and terminated", substate=91), AppState.CANCELLED, "cancelled"),
        (ended(0, f"{RAN} and terminated", substate=91), AppState.CANCELLED, "cancelled"),
        (ended(-29), FAILED, "time_limit"),
        (ended(271, f"{RAN} and exceeded resource walltime"), FAILED, "time_limit"),
        (ended(0, f"{RAN} and exceeded resource walltime"), FAILED, "time_limit"),
        (ended(271, **USED), FAILED, "time_limit"),
        (ended(271), FAILED, "signal_15"),
        (ended(-27), FAILED, "out_of_memory"),
        (ended(271, f"{RAN} and exceeded resource mem"), FAILED, "out_of_memory"),
        (ended(-14), FAILED, "node_failure"),
        (ended(None, f"{RAN} and failed", substate=93), FAILED, "node_failure"),
        (ended(-3), FAILED, "launch_failed"),
        (ended(-99), FAILED, "launch_failed"),
        (ended(-1, "job held, too many failed attempts to run"), FAILED, "launch_failed"),
        (ended(None, "Job deleted", exec_host=None), AppState.CANCELLED, "cancelled"),
        (
            ended(None, "Job deleted, dependency failed", exec_host=None, substate=91),
            AppState.CANCELLED,
            "dependency_failed",
        ),
    ],
    ids=lambda value: value.why if isinstance(value, EngineJob) else "",
)
def test_ends_are_told_apart(job: EngineJob, state: AppState, why: str) -> None:
    assert (job.state, job.why) == (state, why)


def test_no_word_for_an_end_is_one_for_a_state() -> None:
    assert set(ENDS.values()) & {why for _, why in STATES.values()} == set()


def test_hosts_restarts_exit_codes_and_names_are_read() -> None:
    places = "n1/0*2+n2/0+n1/1"

    found = one(exec_host=places, run_count=3, Job_Name=123)

    assert found == EngineJob("7", RUNNING, "R", "", ("n1", "n2"), 2, 0, "123")
    assert one(job_state="Q", run_count=3).restarts == 3
    assert [ended(status).exit_code for status in (7, 271, -29)] == [7, 143, 0]


def test_the_tasks_of_an_array_are_one_job() -> None:
    whole = {"Job_Name": "many", "job_state": "B", "array": "True"}
    text = answer(
        **{"2[]": whole},
        **{"2[0]": {"job_state": "X", "Exit_status": 0, "exec_host": "n1/0"}},
        **{"2[1]": {"job_state": "R", "exec_host": "n2/0", "run_count": 2}},
        **{"2[2]": {"job_state": "Q"}},
    )

    (job,) = read(text).values()

    assert (job.id, job.state, job.hosts, job.restarts) == ("2[]", RUNNING, ("n1", "n2"), 1)
    assert (job.name, [task.id for task in job.tasks]) == ("many", ["2[0]", "2[1]", "2[2]"])


def test_an_array_has_failed_once_all_is_over_and_a_task_has() -> None:
    whole = {"job_state": "F", "Exit_status": 1}
    good = {"job_state": "F", "Exit_status": 0}

    late = {**good, "Exit_status": -29}
    (told,) = read(answer(**{"2[]": whole, "2[0]": good, "2[1]": late})).values()
    (silent,) = read(answer(**{"2[]": whole, "2[0]": {"job_state": "X"}})).values()

    assert (told.state, told.why) == (FAILED, "time_limit")
    assert (silent.state, len(silent.tasks)) == (FAILED, 1)


def test_an_answer_without_jobs_is_empty_and_one_that_is_none_is_said() -> None:
    assert read("") == {}
    assert read('{"timestamp": 1}') == {}
    with pytest.raises(LoomError, match="qstat printed no JSON"):
        read("Job Id: 7.ctl\n")


def test_numbers_and_durations() -> None:
    assert [number(name) for name in ("12.ctl.site\n", "12[].ctl", "12")] == ["12", "12[]", "12"]
    assert [seconds(text) for text in ("90", "1:30", "01:00:30", "soon", "")] == [
        *(90, 90, 3630, 0, 0)
    ]


class Server(EngineCommands):
    """A server that knows some of the user's jobs, and has forgotten the others."""

    def __init__(self, known: int, said: str) -> None:
        super().__init__("pbs")
        self.asked: list[list[str]] = []
        self._known = known
        self._said = said

    def ask(self, argv: Sequence[str], is_silence: Callable[[str], bool]) -> str:
        self.asked.append(list(argv))
        if argv[0] == "qselect":
            return "1.ctl\n101.ctl\n"
        jobs = {f"_{word}": {"job_state": "R"} for word in argv[6:] if int(word) <= self._known}
        raise EngineRefused("qstat", 153, self._said, answer(**jobs))


def test_a_hundred_jobs_cost_two_questions_and_forgotten_ones_no_answer(home: Path) -> None:
    for job in range(1, 101):
        Index("pbs").add(IndexEntry(str(job), "pbs", f"run-{job}", "run", "torchx", "/f"))
    server = Server(90, "; ".join(f"qstat: Unknown Job Id {job}.ctl" for job in range(91, 102)))

    listed = PbsScheduler("pbs", "torchx", server).list()

    states = {line.app_id: line.state for line in listed}
    assert [words[0] for words in server.asked] == ["qselect", "qstat"]
    assert sorted(map(int, server.asked[1][6:])) == list(range(1, 102))
    assert {states[str(job)] for job in range(1, 91)} == {RUNNING}
    assert {states[str(job)] for job in range(91, 101)} == {AppState.UNKNOWN}


class ShortServer(Server):
    """A server that answers for the first job it is asked for, and says nothing of the others."""

    def __init__(self) -> None:
        super().__init__(0, "")

    def ask(self, argv: Sequence[str], is_silence: Callable[[str], bool]) -> str:
        self.asked.append(list(argv))
        return "1.ctl\n101.ctl\n" if argv[0] == "qselect" else answer(**{f"_{argv[6]}": ENDED})


ENDED = {"job_state": "F", "Exit_status": 0, "exec_host": "n1/0"}


def test_jobs_that_were_left_out_are_asked_for_alone_the_living_and_the_newest(home: Path) -> None:
    for job in range(1, 101):
        entry = IndexEntry(
            str(job), "pbs", f"run-{job}", "run", "torchx", "/f", submitted_at=float(job)
        )
        Index("pbs").add(entry)
    server = ShortServer()
    scheduler = PbsScheduler("pbs", "torchx", server)

    states = {line.app_id: line.state for line in scheduler.list()}

    alone = [int(words[6]) for words in server.asked[2:]]
    assert sorted(alone) == [*range(81, 101), 101]
    assert {states[str(job)] for job in (1, *range(81, 102))} == {AppState.SUCCEEDED}
    assert states["80"] is AppState.UNKNOWN


def test_what_pbs_says_besides_is_the_error(home: Path) -> None:
    server = Server(9, "qstat: Unknown Job Id 91.ctl; qstat: Invalid credential")

    with pytest.raises(EngineRefused, match="Invalid credential"):
        PbsScheduler("pbs", "torchx", server).list()
