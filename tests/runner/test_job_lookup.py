from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.errors import Ambiguous, NotFound, UserError
from torchloom.launch.records.folder import RunFolder
from torchloom.runner.job_lookup import find_job
from torchloom.specs.api import (
    AppState,
    MalformedAppHandleException,
    UnknownSchedulerException,
)

from ..launch.records.test_record import RUNNING
from ..launch.records.test_request import REQUEST


def job(app_id: str, name: str, day: int, state: AppState = AppState.SUCCEEDED) -> None:
    created = f"2026-08-{day:02}T00:00:00.000+00:00"
    record = replace(RUNNING, id=app_id, name=name, created_at=created, state=state)
    RunFolder.create(replace(REQUEST, app_id=app_id), {}, record).publish()


@pytest.fixture
def jobs(home: Path) -> None:
    job("train-xyz", "train", 1)
    job("train-xab", "train", 2)
    job("eval-q", "eval", 3)
    job("train", "other", 4)


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("train-xyz", "train-xyz"),
        ("train-xy", "train-xyz"),
        ("train", "train"),  # an id comes before a name
        ("eval", "eval-q"),
        ("other", "train"),
        ("@", "train"),
        ("local://torchx/train-xab", "train-xab"),
        ("local_cwd:///eval-q", "eval-q"),
    ],
)
def test_a_job_is_found_by_id_its_beginning_its_name_its_handle_or_as_the_newest(
    reference: str, found: str
) -> None:
    assert find_job(reference).id == found


def test_of_several_jobs_with_a_name_the_newest_is_meant(home: Path) -> None:
    job("train-b", "train", 1)
    job("train-a", "train", 2)

    assert find_job("train").id == "train-a"


@pytest.mark.usefixtures("jobs")
def test_a_beginning_that_several_have_is_ambiguous_and_they_are_listed() -> None:
    with pytest.raises(Ambiguous, match="job 'train-x' is ambiguous: train-xab, train-xyz"):
        find_job("train-x")


@pytest.mark.usefixtures("jobs")
def test_a_name_that_no_job_has_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound) as raised:
        find_job("evil-q")

    assert str(raised.value) == (
        "no job 'evil-q'; did you mean 'eval-q'?; `loom ls` lists the jobs"
    )


def test_left_out_the_only_active_job_is_meant(home: Path) -> None:
    job("old", "old", 3)
    job("now", "now", 1, AppState.RUNNING)

    assert find_job(None).id == "now"


def test_left_out_with_several_active_jobs_they_are_listed(home: Path) -> None:
    job("a", "a", 1, AppState.RUNNING)
    job("b", "b", 2, AppState.RUNNING)

    with pytest.raises(Ambiguous, match=r"b, a"):
        find_job(None)


@pytest.mark.usefixtures("jobs")
def test_left_out_with_no_active_job_the_remedy_is_said() -> None:
    with pytest.raises(UserError, match="no job is active; name one, or @ for the newest"):
        find_job(None)


@pytest.mark.parametrize("reference", ["@", "", "nothing"])
def test_without_any_job_none_is_found(home: Path, reference: str) -> None:
    with pytest.raises(NotFound, match="`loom ls` lists the jobs"):
        find_job(reference)


def test_a_handle_of_another_engine_is_not_looked_for_here(home: Path) -> None:
    with pytest.raises(UnknownSchedulerException, match="no scheduler 'slurm'"):
        find_job("slurm://torchx/1")
    with pytest.raises(MalformedAppHandleException):
        find_job("slurm://1")
    with pytest.raises(NotFound, match="no job '1'"):
        find_job("local://torchx/1")
