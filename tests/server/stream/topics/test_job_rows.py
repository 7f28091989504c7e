"""How far and how fast a job is, by what was seen of it; what may be asked of it as it is."""

from pathlib import Path
from typing import Any

import pytest

from torchloom.server.stream.topics.jobs import JobPace, clocks_of, labels, progress_of, verbs_of
from torchloom.weaver.jobs.registry import TOTAL
from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.rows import JobRow, SubmissionRow


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(*seen: tuple[float, int | None, bool]) -> list[float | None]:
    """Return the speeds that are told when a job is seen so at these times."""
    clock, found = Clock(), []
    pace = JobPace(clock)
    for at, step, is_running in seen:
        clock.now = at
        found.append(pace.saw("j", step, is_running))
    return found


def test_speed_is_that_of_the_last_seconds() -> None:
    seen = [(float(at), at * 10, True) for at in range(20)]
    seen += [(float(at), 190 + (at - 19) * 20, True) for at in range(20, 40)]

    found = paced(*seen)

    assert found[0] is None
    assert found[10] == pytest.approx(10)
    assert found[-1] == pytest.approx(20)


def test_a_job_that_stands_goes_back_or_does_not_run_has_no_speed() -> None:
    assert paced((0, 5, True), (1, 5, True)) == [None, None]
    assert paced((0, 5, True), (1, 9, True), (2, 3, True)) == [None, 4.0, None]
    assert paced((0, 5, True), (1, 9, False), (2, None, True)) == [None, None, None]


@pytest.mark.parametrize(
    ("step", "total", "speed", "expected"),
    [
        (50, 200, 10.0, (0.25, 200, 15)),
        (50, 200, None, (0.25, 200, None)),
        (250, 200, 10.0, (1.0, 200, 0)),
        (50, None, 10.0, (None, None, None)),
        (None, 200, None, (None, 200, None)),
    ],
)
def test_progress_is_told_where_it_can_be(
    step: int | None, total: int | None, speed: float | None, expected: tuple[Any, ...]
) -> None:
    found = progress_of(step, total, speed)

    assert (found["progress"], found["total_steps"], found["eta_seconds"]) == expected


def test_a_job_has_the_steps_that_its_loop_reports_or_the_fewer_that_it_was_given(
    tmp_path: Path,
) -> None:
    store = open_store(DatabasePlace(tmp_path))
    store.state.put(JobRow("reported", facts={"total_steps": 60}), JobRow("given"))
    store.state.put(
        JobRow("limited", facts={"total_steps": 9000}), JobRow("alone", facts={TOTAL: 7})
    )
    for number, job in enumerate(("reported", "given", "limited"), 1):
        store.state.put(SubmissionRow(job, number, spec={"hyperparameters": {"steps": 500}}))

    found = labels(store, ["reported", "given", "limited", "alone"])
    store.close()

    assert {job: its["total_steps"] for job, its in found.items()} == {
        "reported": 60,
        "given": 500,
        "limited": 500,
        "alone": 7,
    }


@pytest.mark.parametrize(
    ("state", "has", "verbs"),
    [
        ("RUNNING", (True, True, False), ["set", "undo", "pause", "stop", "checkpoint", "cancel"]),
        ("RUNNING", (True, False, True), ["pause", "resize", "stop", "checkpoint", "cancel"]),
        ("RUNNING", (False, False, True), ["cancel"]),
        ("PAUSED", (True, True, True), ["resume", "stop", "cancel"]),
        ("QUEUED", (False, False, False), ["cancel"]),
        ("FAILED", (True, True, True), ["resume"]),
    ],
)
def test_only_what_fits_is_offered(
    state: str, has: tuple[bool, bool, bool], verbs: list[str]
) -> None:
    assert verbs_of(state, *has) == verbs


def test_the_three_clocks_speak_each_for_itself() -> None:
    job = {"state": "RUNNING", "reason": "", "step": 9, "world_size": 2, "scheduler": "local"}
    job["handle"] = "local://x/j"
    up = {"state": "up", "step": 9, "phase": "forward", "silent_seconds": 0.2, "reason": ""}
    hung = {**up, "state": "suspect", "silent_seconds": 31.7, "reason": "stands in backward"}

    assert clocks_of(job, [up, hung], "RUNNING") == {
        "process": {"state": "ok", "up": 2, "total": 2, "detail": "2 of 2 ranks are up"},
        "progress": {
            "state": "suspect",
            "step": 9,
            "phase": "forward",
            "seconds_since": 31,
            "detail": "stands in backward",
        },
        "scheduler": {
            "state": "RUNNING",
            "engine": "local",
            "handle": "local://x/j",
            "detail": "local reports RUNNING",
        },
    }
