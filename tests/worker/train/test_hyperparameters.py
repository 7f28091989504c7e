"""Hyperparameters: every type and range is kept, and what does not fit is named with a remedy."""

import re
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.train.hyperparameters import LIVE, TABLE, Hyper, hyper_of

from .jobs import job

DOCS = Path(__file__).parents[3] / "docs" / "internals" / "train.md"


def problem(spec: JobSpec) -> tuple[str, str]:
    """Return which field a job is refused for, and why."""
    with pytest.raises(SpecError) as caught:
        hyper_of(spec)
    return caught.value.path, caught.value.problem


def test_a_job_without_hyperparameters_has_the_defaults() -> None:
    assert hyper_of(job()) == Hyper()


def test_values_are_taken_as_the_type_that_is_wanted() -> None:
    found = hyper_of(job({"lr": 1, "epochs": 3, "amp": False, "weight_decay": "1e-4"}))

    assert found == Hyper(lr=1.0, epochs=3, amp="off", weight_decay=0.0001)
    assert isinstance(found.lr, float)


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"epoch": 3}, "epoch", "unknown hyperparameter; did you mean 'epochs'?"),
        ({"zzzz": 3}, "zzzz", f"unknown hyperparameter; known: {', '.join(TABLE)}"),
        ({"lr": "fast"}, "lr", "expected a number from 0 to 100, got 'fast'"),
        ({"lr": None}, "lr", "expected a number from 0 to 100, got None"),
        ({"lr": True}, "lr", "expected a number from 0 to 100, got True"),
        ({"lr": [0.1]}, "lr", "expected a number from 0 to 100, got [0.1]"),
        ({"lr": -1}, "lr", "must be 0 to 100, is -1"),
        ({"lr": "1e999"}, "lr", "must be 0 to 100, is inf"),
        ({"lr": "٣"}, "lr", "expected a number from 0 to 100, got '٣'"),
        ({"epochs": 2.5}, "epochs", "expected a whole number from 1 to 1048576, got 2.5"),
        ({"epochs": 0}, "epochs", "must be 1 to 1048576, is 0"),
        ({"batch_size": "64"}, "batch_size", "a whole number from 1 to 1048576, got '64'"),
        ({"optimizer": "adma"}, "optimizer", "no 'adma'; did you mean 'adam'?; known: adam,"),
        ({"amp": True}, "amp", "no True; known: off, bf16, fp16"),
        ({"schedule": 1}, "schedule", "no 1; known: constant, linear, cosine, step, onecycle"),
        ({"momentum": 0.9}, "momentum", "is for optimizer sgd, not adam: remove it"),
        ({"gamma": 0.5}, "gamma", "is for schedule step, not constant: remove it"),
        ({"width": 64}, "width", "is for model transformer, not mlp: remove it"),
        ({"context": 9}, "context", "is for dataset text, not synthetic: remove it"),
        ({"schedule": "onecycle", "warmup_steps": 3}, "warmup_steps", "is for schedule constant"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], path: str, words: str) -> None:
    found = problem(job(given))

    assert found[0] == f"hyperparameters.{path}"
    assert words in found[1]


def test_heads_that_cannot_share_a_width_are_refused() -> None:
    spec = job({"width": 10, "heads": 4}, model="transformer", dataset="text:x")

    where, why = problem(spec)

    assert (where, why) == (
        "hyperparameters.heads",
        "4 heads cannot share a width of 10: give a divisor of it",
    )


def test_a_function_of_ones_own_has_names_of_its_own() -> None:
    given = {"depth": [1, 2], "layers": "many", "lr": 0.5}

    assert hyper_of(job(given, model="module:mine.net")) == Hyper(lr=0.5)
    assert problem(job({"lr": "x"}, model="module:mine.net"))[0] == "hyperparameters.lr"


def test_a_knob_gives_the_hyperparameter_of_its_name_a_value() -> None:
    knobs = {"lr": {"value": 1, "max": 2}, "mood": "good"}

    assert hyper_of(job(knobs=knobs)) == Hyper(lr=1.0)


@pytest.mark.parametrize(
    ("hyper", "knobs", "path", "words"),
    [
        ({}, {"lr": "x"}, "knobs.lr", "expected a number"),
        ({}, {"lr": {"value": 1, "max": 1000}}, "knobs.lr", "must be 0 to 100, is 1000"),
        ({}, {"epochs": 3}, "knobs.epochs", "cannot be changed while the job runs"),
        ({"lr": 0.1}, {"lr": 0.2}, "knobs.lr", "is 0.2, and 0.1 in hyperparameters: give it once"),
        ({}, {"momentum": 0.9}, "knobs.momentum", "is for optimizer sgd, not adam"),
    ],
)
def test_a_knob_that_cannot_act_is_refused(
    hyper: dict[str, Any], knobs: dict[str, Any], path: str, words: str
) -> None:
    found = problem(job(hyper, knobs=knobs))

    assert found[0] == path
    assert words in found[1]


def test_what_changes_live_is_a_number_of_the_table() -> None:
    assert all(isinstance(TABLE[name][0], float) for name in LIVE)


def row(name: str) -> str:
    """Return the line of the docs' table that the code stands for."""
    default, limits = TABLE[name]
    kind = "word" if limits.choices else "whole number" if isinstance(default, int) else "number"
    may_be = ", ".join(f"`{choice}`" for choice in limits.choices) or limits.span
    where = f"{limits.only[0]} {', '.join(limits.only[1])}" if limits.only else ""
    return f"| `{name}` | {kind} | `{default}` | {may_be} | {limits.says} | {where} |"


def test_the_docs_have_the_table_that_the_code_has() -> None:
    shown = re.findall(r"^\| `[a-z_]+` \| (?:word|whole number|number) .*$", DOCS.read_text(), re.M)

    assert shown == [row(name) for name in TABLE]
