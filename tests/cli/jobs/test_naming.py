"""How a person may name a job: id, beginning, name, handle, @, or not at all."""

from typing import Any

import pytest

from torchloom.errors import Ambiguous, NotFound, UserError
from torchloom.runner.job_lookup import find_job
from torchloom.schedulers import engines
from torchloom.specs.api import MalformedAppHandleException, UnknownSchedulerException


@pytest.fixture(autouse=True)
def jobs(ended: Any) -> None:
    for second, (app_id, name) in enumerate(
        [("train-abc", "train"), ("train-abd", "train"), ("eval-xyz", "eval"), ("ev-1", "ev")]
    ):
        ended(app_id, name=name, created_at=f"2026-01-01T00:00:0{second}+00:00")


@pytest.mark.parametrize(
    ("reference", "app_id"),
    [
        ("train-abc", "train-abc"),
        ("train", "train-abd"),  # a name means the newest
        ("train-abd", "train-abd"),
        ("eval-", "eval-xyz"),
        ("ev", "ev-1"),  # a name before a beginning
        ("@", "ev-1"),
        ("local://torchx/train-abc", "train-abc"),
        ("local_cwd:///eval-xyz", "eval-xyz"),
    ],
)
def test_a_job_is_found(reference: str, app_id: str) -> None:
    found = find_job(reference)

    assert found.id == app_id
    assert len(found.ranks) == 1


def test_several_beginnings_are_listed() -> None:
    with pytest.raises(Ambiguous) as caught:
        find_job("train-")

    assert str(caught.value) == "job 'train-' is ambiguous: train-abd, train-abc"


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("trian", NotFound, "no job 'trian'; did you mean 'train'?; `loom ls` lists"),
        ("", NotFound, "no job ''; `loom ls` lists"),
        ("..", NotFound, "no job '..'; `loom ls` lists"),
        ("../runs/train-abc", NotFound, "no job"),
        (".ended.jsonl", NotFound, "no job"),
        ("a\0b", NotFound, "no job"),
        ("local://torchx/nosuch", NotFound, "no job 'nosuch'; `loom ls` lists"),
        ("local://nosuch", MalformedAppHandleException, "is not of the form"),
        ("slurm://torchx/1", UnknownSchedulerException, "no scheduler 'slurm'"),
        (None, UserError, "no job is active; name one, or @ for the newest"),
    ],
)
def test_what_nobody_has_is_an_error_with_a_remedy(
    reference: str | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        find_job(reference)

    assert words in str(caught.value)


def test_an_engine_with_two_names_is_listed_once() -> None:
    assert engines(["local", "local_cwd", "slurm"]) == ["local", "slurm"]
