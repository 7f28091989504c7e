"""Where a run saves and until when, by what its job, its user and its engine say."""

import pytest

from torchloom.launch.records.request import LaunchRequest
from torchloom.schedulers.local_request import saving

REQUEST = LaunchRequest("job-1", "job", "s", "/", "/logs", ())


@pytest.mark.parametrize(
    ("env", "deadline"),
    [
        ({}, 0),
        ({"SLURM_JOB_END_TIME": "1800000000"}, 1800000000),
        ({"SLURM_JOB_END_TIME": "1800000000", "LOOM_DEADLINE": "1700000000"}, 1700000000),
        ({"LOOM_DEADLINE": "soon", "SLURM_JOB_END_TIME": "1800000000"}, 1800000000),
        ({"SLURM_JOB_END_TIME": "-1"}, 0),
    ],
)
def test_the_end_of_an_allocation_is_what_the_user_or_the_engine_says(
    env: dict[str, str], deadline: int
) -> None:
    assert saving(REQUEST, "", env).deadline == deadline


@pytest.mark.parametrize(
    ("chosen", "env", "root"),
    [
        ("", {"LOOM_CHECKPOINTS": "/shared"}, "/shared/job-1/checkpoints"),
        ("s3://bucket/here", {"LOOM_CHECKPOINTS": "/shared"}, "s3://bucket/here/job-1/checkpoints"),
        ("local", {"LOOM_CHECKPOINTS": "s3://bucket"}, "s3://bucket/job-1/checkpoints"),
    ],
)
def test_what_was_chosen_for_a_run_goes_before_what_holds_for_all(
    chosen: str, env: dict[str, str], root: str
) -> None:
    assert saving(REQUEST, chosen, env).checkpoints == root
