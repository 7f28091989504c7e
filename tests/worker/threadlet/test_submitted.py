"""What a job was submitted with reaches its program: hyperparameters, and knobs with ranges."""

import json

import pytest

from torchloom.messages.plane import Goodbye, Register
from torchloom.worker.threadlet.rank_identity import SubmittedJob, submitted

from .conftest import Ranks

SPEC = {
    "name": "x",
    "hyperparameters": {"layers": 12, "width": 64},
    "knobs": {"temperature": {"value": 0.9, "min": 0.0, "max": 2.0}, "clip": 1.0},
}


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_program_finds_its_jobs_hyperparameters_in_the_config(ranks: Ranks) -> None:
    (told,) = ranks.run("submitted.py", LOOM_JOB_SPEC=json.dumps(SPEC))

    assert json.loads(told) == {
        "config": {"temperature": 0.9, "clip": 1.0, "layers": 12, "own": "x", "width": 64},
        "layers": 12,
    }


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_jobs_knobs_are_offered_with_their_range_when_it_begins(ranks: Ranks) -> None:
    ranks.run("submitted.py", LOOM_JOB_SPEC=json.dumps(SPEC))

    ranks.agent.wait(Goodbye)
    last = _last(ranks).knobs
    knobs = {knob.name: (knob.value, knob.low, knob.high) for knob in last if knob.is_used}
    assert knobs == {"temperature": (0.9, 0.0, 2.0), "clip": (1.0, None, None)}
    assert {knob.name for knob in last if not knob.is_used} == {"layers", "width", "own"}


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"knobs": 3, "hyperparameters": []}'])
def test_what_makes_no_sense_says_nothing(text: str) -> None:
    assert submitted({"LOOM_JOB_SPEC": text}) == SubmittedJob()


def test_a_jobs_seed_and_what_it_says_of_checkpoints_are_read() -> None:
    told = {"seed": 3, "checkpointing": {"enabled": True, "every_n_steps": 5}}

    found = submitted({"LOOM_JOB_SPEC": json.dumps(told)})

    assert found == SubmittedJob(seed=3, checkpointing={"enabled": True, "every_n_steps": 5})
    assert submitted({"LOOM_JOB_SPEC": '{"seed": "x", "checkpointing": 1}'}) == SubmittedJob()


def _last(ranks: Ranks) -> Register:
    return ranks.agent.of(Register)[-1]
