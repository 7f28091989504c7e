"""Ranks that nothing aligns agree on the step of a change, or are refused it with the reason."""

from collections.abc import Callable

import pytest

from torchloom.errors import LoomError

from ..harness.home import until
from ..harness.plane_jobs import Job, agree

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
FIRST = {"temperature": 0.7, "lr": 0.05}
LOCAL_SGD = {"SYNC": 50, "PAUSES": [0.001, 0.001, 0.02]}
FAST = {"TRAINS": 0, "PAUSES": [0.0001, 0.0001]}
SLOW = {"PAUSES": [2.0, 2.0]}
EVALUATION = {"EVALUATION": 1.5, "SYNC": 500}


@pytest.mark.parametrize(
    ("env", "world", "knobs"),
    [
        pytest.param(LOCAL_SGD, 3, ("lr", "temperature"), id="LocalSGD with one 20 times slower"),
        pytest.param(FAST, 2, ("temperature",), id="steps of 0.1 ms"),
        pytest.param(SLOW, 2, ("lr",), id="steps of 2 s"),
    ],
)
def test_ranks_that_nothing_aligns_change_at_one_step(
    start: Callable[..., Job], env: dict[str, object], world: int, knobs: tuple[str, ...]
) -> None:
    job = start("apart.py", world, **env).ready(knobs[0])

    outcomes = [
        job.set(dict.fromkeys(knobs, 0.01 * (at + 1))) for at in range(1 if env is SLOW else 3)
    ]

    assert {one["state"] for one in outcomes} == {"applied"}
    assert [len(one["ranks"]) for one in outcomes] == [world] * len(outcomes)
    agree(job, FIRST)


def test_a_rank_inside_a_long_evaluation_is_waited_for_by_nobody(start: Callable[..., Job]) -> None:
    job = start("apart.py", 2, **EVALUATION).ready()

    while job.step(1) < 29:
        job.passes(1, range(1, 2))
    job.passes(5, range(1))
    outcome = job.set({"lr": 0.01})
    rows = job.rows(0)
    agree(job, FIRST)

    began = [row.time for row in job.rows(1) if row.step in (29, 30)]
    during = [row.time for row in rows if began[0] < row.time < began[1]]
    assert outcome["state"] == "applied"
    assert len(during) > 50


def refusal(job: Job) -> str:
    """Ask for a change that cannot be aligned; return the reason, after a look that none came."""
    with pytest.raises(LoomError) as refused:
        job.set({"lr": 0.01})
    job.passes(3)
    assert {row.used["lr"] for rank in range(job.world) for row in job.rows(rank)} == {0.05}
    return str(refused.value)


def test_ranks_that_drifted_apart_are_refused_with_their_steps(start: Callable[..., Job]) -> None:
    job = start("apart.py", 2, STEPPING="attached", PAUSES=[0.02, 0.1]).ready()
    until(lambda: job.step(0) - job.step(1) > 10)

    why = refusal(job)

    assert "not aligned: rank 1 is in step" in why, why
    assert "rank 0 in step" in why, why


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"OPTIMIZERS": 9}, "not aligned: 9 optimizers take steps, more than 8"),
        ({"THREADS": 1}, "not aligned: optimizer steps are taken on threads besides the main one"),
    ],
)
def test_steps_that_cannot_be_counted_alike_are_refused_with_the_reason(
    start: Callable[..., Job], env: dict[str, object], reason: str
) -> None:
    job = start("apart.py", 2, STEPPING="attached", **env).ready()
    job.passes(3)

    assert refusal(job).endswith(reason)
