"""Jobs that only the plane knows, and jobs that get their run while a verb looks for them."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.client import plane
from torchloom.errors import Ambiguous, NotFound
from torchloom.launch.host import sockets
from torchloom.launch.records.record import RunRecord
from torchloom.runner.job_lookup import JobWithoutRun, find_job, find_run_or_job
from torchloom.unix import receive_message, send_message

Act = Callable[[], object]


class Door(threading.Thread):
    """A plane with jobs of its queue: it answers what a weaver would, and lets things happen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        plane.made_folder()
        self._listener = sockets.listen(plane.door())
        self._listener.setblocking(True)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.before: list[Act] = []  # what happens as the next question arrives
        self.after: list[Act] = []  # what happens once it is answered
        self.hangs_up = False
        self.start()

    def waits(self, job: str, name: str, second: int = 0) -> None:
        """Have a job wait in the queue."""
        self.jobs[job] = {
            "id": job,
            "name": name,
            "state": "QUEUED",
            "reason": "waits for 1 CPU",
            "scheduler": "local",
            "step": None,
            "attempt": 1,
            "generation": 0,
            "world_size": 1,
            "warning": "",
            "created_at": f"2026-01-01T00:00:{second:02}+00:00",
            "started_at": None,
            "ended_at": None,
            "facts": {"submitted": True},
            "ranks": [],
        }

    def begins(self, job: str) -> None:
        self.jobs[job]["state"] = "RUNNING"
        self.jobs[job]["facts"]["log_dir"] = "/logs"

    def run(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            with channel:
                if (asked := receive_message(channel)) is not None and not self.hangs_up:
                    while self.before:
                        self.before.pop()()
                    answer = self._answer(asked)
                    while self.after:
                        self.after.pop()()
                    send_message(channel, answer)

    def close(self) -> None:
        self._listener.shutdown(2)
        self._listener.close()
        self.join()

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["ask"] == "job":
            found = self.jobs.get(asked["job"])
            return {"ok": found} if found else {"error": "no such job", "exit_code": 2}
        known = sorted(self.jobs.values(), key=lambda job: job["created_at"], reverse=True)
        jobs = [job for job in known if asked.get("ids") is None or job["id"] in asked["ids"]]
        if asked.get("strangers"):
            jobs = [job for job in jobs if "log_dir" not in job["facts"]]
        if name := asked.get("named"):
            jobs = [job for job in jobs if job["name"] == name or job["id"].startswith(name)]
        return {"ok": jobs[: asked.get("limit")]}


@pytest.fixture
def door(state: Any) -> Iterator[Door]:
    found = Door()
    yield found
    found.close()


@pytest.fixture
def begun(door: Door, ended: Callable[..., RunRecord]) -> Act:
    """Return what gives the job train-1 its run, then tells the plane."""

    def begin() -> None:
        ended("train-1")
        door.begins("train-1")

    door.waits("train-1", "train")
    return begin


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_begins_as_the_plane_is_asked_is_listed_once(
    when: str, door: Door, begun: Act, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(door, when).append(begun)

    assert main(["ls", "--json"]) == 0

    assert [job["id"] for job in json.loads(capsys.readouterr().out)] == ["train-1"]


@pytest.mark.parametrize("reference", ["train-1", "train", "tra", "@", "local://torchx/train-1"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_begins_as_it_is_looked_for_is_found(
    when: str, reference: str, door: Door, begun: Act
) -> None:
    getattr(door, when).append(begun)

    found = find_run_or_job(reference)

    assert (found if isinstance(found, dict) else {"id": found.id})["id"] == "train-1"


def test_a_job_that_waits_is_found_as_a_run_is_and_has_none(
    door: Door, ended: Callable[..., RunRecord]
) -> None:
    ended("train-1", created_at="2026-01-01T00:00:01+00:00")
    door.waits("train-2", "train", second=2)
    door.waits("old-1", "old", second=0)

    references = ("train", "@", "train-2", "train-1", "o")
    meant = {name: find_run_or_job(name) for name in references}
    del door.jobs["old-1"]
    meant[""] = find_run_or_job(None)

    ids = {name: job["id"] if isinstance(job, dict) else job.id for name, job in meant.items()}
    newest = dict.fromkeys(("train", "@", "train-2", ""), "train-2")
    assert ids == newest | {"train-1": "train-1", "o": "old-1"}


def test_a_job_that_waits_makes_a_beginning_ambiguous(
    door: Door, ended: Callable[..., RunRecord]
) -> None:
    ended("train-1", created_at="2026-01-01T00:00:01+00:00")
    door.waits("train-2", "train", second=2)

    with pytest.raises(Ambiguous) as several:
        find_run_or_job("train-")
    with pytest.raises(JobWithoutRun) as waiting:
        find_job("@")
    with pytest.raises(NotFound) as absent:
        find_run_or_job("local://torchx/train")

    assert several.value.candidates == ("train-2", "train-1")
    assert str(waiting.value) == "no run of job 'train-2'; it is QUEUED waits for 1 CPU"
    assert str(absent.value).startswith("no job 'train'; ")


def test_a_list_without_the_planes_answer_says_what_is_missing(
    door: Door, ended: Callable[..., RunRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    ended("train-1")
    door.hangs_up = True

    assert main(["ls", "--json"]) == 0

    out, err = capsys.readouterr()
    assert [job["id"] for job in json.loads(out)] == ["train-1"]
    assert "jobs that only the plane knows are not listed" in err
