"""LSF as it answers for jobs that were submitted from here: its words, and what the run noted."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torchloom.errors import LoomError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest
from torchloom.schedulers.batch.commands import EngineCommands, EngineRefused
from torchloom.schedulers.batch.index import Index, IndexEntry
from torchloom.schedulers.lsf_scheduler import LsfScheduler
from torchloom.specs.api import AppState

from .planned import HOSTILE
from .test_batch_apps import record
from .test_lsf_states import printed
from .test_lsf_states import record as row


class Answers(EngineCommands):
    """The commands of an LSF that says what the test gives."""

    def __init__(self, *said: str | EngineRefused) -> None:
        super().__init__("lsf", self.pauses_append)
        self.said = list(said)
        self.asked: list[Sequence[str]] = []
        self.pauses: list[float] = []

    def pauses_append(self, pause: float) -> None:
        self.pauses.append(pause)

    def run(self, argv: Sequence[str], stdin: str | None = None) -> str:
        self.asked.append(argv)
        answer = self.said.pop(0)
        if isinstance(answer, EngineRefused):
            raise answer
        return answer


Known = Callable[..., LsfScheduler]


@pytest.fixture
def known(home: Path) -> Known:
    """Return LSF with one job of ours that has run, and what it answers."""
    launch = LaunchRequest("app-x", "app", "torchx", "/", str(home / "logs"), ())
    RunFolder.create(launch, {}, record(AppState.RUNNING)).publish()
    Index("lsf").add(IndexEntry("7", "lsf", "app-x", "app", "torchx", "/it's", "t", {"a": 2}))

    def make(*said: str | EngineRefused) -> LsfScheduler:
        return LsfScheduler("lsf", "torchx", Answers(*said))

    return make


def test_a_command_for_a_running_job_is_read_by_one_shell_as_it_was_meant(known: Known) -> None:
    words = known(printed(row())).inside("7", ["loom", "set", HOSTILE])

    assert words is not None
    assert (words[0], words[-3:-1]) == ("ssh", ("--", "n1"))
    assert shlex.split(words[-1])[3:] == ["/it's", "loom", "set", HOSTILE]
    assert known(printed(row(stat="PEND"))).inside("7", ["loom"]) is None


def test_a_job_that_waits_and_has_run_was_queued_again(known: Known) -> None:
    waits = row(stat="PEND", pend_reason="Not enough job slot(s)", exec_host="")

    again = known(printed(waits)).describe("7")
    first = known(printed({**waits, "JOBID": "8"})).describe("8")

    assert again is not None
    assert first is not None
    assert (again.state, again.msg) == (AppState.PENDING, "requeued: Not enough job slot(s)")
    assert [one.state for one in again.roles_statuses[0].replicas] == [AppState.PENDING] * 2
    assert first.msg == "Not enough job slot(s)"


def test_silence_is_asked_again_no_job_is_an_answer_and_a_refusal_an_error(known: Known) -> None:
    silent = EngineRefused("bjobs", 255, "LSF is down. Please wait ...; LIM is down")
    scheduler = known(silent, silent, printed(row()))
    none = known(EngineRefused("bjobs", 255, "No unfinished job found"))

    assert [line.app_id for line in scheduler.list()] == ["7"]
    assert vars(scheduler._commands)["pauses"] == [0.5, 1.0]
    assert [line.app_id for line in none.list()] == ["7"]
    with pytest.raises(LoomError, match="User <me>: Bad user name"):
        known(EngineRefused("bjobs", 255, "User <me>: Bad user name")).list()


def test_any_number_of_jobs_cost_one_question(known: Known) -> None:
    rows = [row(jobid=str(number), stat="PEND") for number in range(1, 101)]
    scheduler = known(printed(*rows))

    listed = scheduler.list()
    states = {found.state for n in range(1, 101) if (found := scheduler.describe(str(n)))}

    assert len(listed) == 100
    assert states == {AppState.PENDING}
    assert len(vars(scheduler._commands)["asked"]) == 1


def test_the_number_of_a_job_is_the_one_that_bsub_said(known: Known) -> None:
    said = "This job will be charged to project P\nJob <123> is submitted to queue <normal>.\n"

    assert known()._job_of(said) == "123"
    with pytest.raises(LoomError, match="bsub printed no job number, but 'hello'"):
        known()._job_of("hello")
