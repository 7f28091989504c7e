"""A plane that nobody pinned leaves after so long without a job, and not before."""

import time

import pytest

from torchloom.errors import Failure
from torchloom.plane.process import Idleness, has_live_job, idle_limit


def test_a_quiet_plane_leaves_at_its_limit_and_a_job_starts_the_clock_again() -> None:
    now = [0.0]
    idleness = Idleness(100, lambda: now[0])

    found = []
    for now[0], busy in ((99.0, False), (150.0, True), (249.0, False), (250.0, False)):
        found.append(idleness.over(busy))

    assert found == [False, False, False, True]


def test_a_quiet_plane_goes_by_the_clock_that_a_step_of_the_time_of_day_does_not_move() -> None:
    assert Idleness(100).clock is time.monotonic


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, 3600),
        ({"LOOM_PLANE_IDLE": "5"}, 5),
        ({"LOOM_PLANE_IDLE": "-1"}, 0),
        ({"LOOM_PLANE_IDLE": "x"}, 3600),
    ],
)
def test_the_limit_is_an_hour_unless_the_environment_says_otherwise(
    env: dict[str, str], seconds: float
) -> None:
    assert idle_limit(env) == seconds


def test_a_look_is_worth_taking_ten_times_within_the_limit() -> None:
    assert Idleness(5).interval == 0.5
    assert Idleness(3600).interval == 60


def test_what_the_weaver_says_counts_and_its_silence_means_nothing(home: object) -> None:
    def silent(*_: object, **__: object) -> object:
        raise Failure("no weaver")

    assert has_live_job(lambda *_, **__: ["a job"])
    assert not has_live_job(lambda *_, **__: [])
    assert not has_live_job(silent)
