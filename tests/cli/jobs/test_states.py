"""One state of a job in our words and in TorchX's: each verb has its own, `--json` has both."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.launch.records.record import RunRecord
from torchloom.specs.api import AppState
from torchloom.specs.states import JobState, app_state_of, job_state_of

Ended = Callable[..., RunRecord]
STATES = ("state", "status", "job_state", "app_state")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return run


def states(text: str) -> list[list[str]]:
    found: Any = json.loads(text)
    return [
        [job[name] for name in STATES] for job in (found if isinstance(found, list) else [found])
    ]


def test_every_state_has_a_word_in_the_other_language() -> None:
    assert {job_state_of(state) for state in AppState} <= {*JobState, "UNKNOWN"}
    assert {app_state_of(state) for state in JobState} <= set(AppState.__members__)
    assert (job_state_of(AppState.SUCCEEDED), app_state_of("COMPLETED")) == (
        "COMPLETED",
        "SUCCEEDED",
    )


def test_our_verbs_say_completed_and_those_of_torchx_succeeded(
    ended: Ended, said: Callable[..., str]
) -> None:
    ended("train-1")

    ours = ["COMPLETED", "COMPLETED", "COMPLETED", "SUCCEEDED"]
    theirs = ["SUCCEEDED", "SUCCEEDED", "COMPLETED", "SUCCEEDED"]
    for verb in ("ls", "jobs", "ps", "runs"):
        assert states(said(verb, "--json")) == [ours], verb
    for verb in ("show", "job"):
        assert states(said(verb, "train-1", "--json")) == [ours], verb
    assert states(said("list", "--json")) == [theirs]
    assert states(said("status", "train-1", "--json")) == [theirs]
    assert ("COMPLETED" in said("ls"), "SUCCEEDED" in said("list")) == (True, True)
    assert "state    COMPLETED  ranks_ended\n" in said("show", "train-1")
    assert "state    SUCCEEDED  ranks_ended\n" in said("status", "train-1")


def test_a_list_can_be_asked_for_a_state_in_either_language(
    ended: Ended, said: Callable[..., str]
) -> None:
    ended("well")
    ended("badly", at=AppState.FAILED)

    found = {
        word: [job["id"] for job in json.loads(said("ls", "--state", word, "--json"))]
        for word in ("completed", "SUCCEEDED", "failed", "queued", "pending", "paused")
    }

    assert found == {
        "completed": ["well"],
        "SUCCEEDED": ["well"],
        "failed": ["badly"],
        "queued": [],
        "pending": [],
        "paused": [],
    }
