"""Model and dataset of a job: what is unknown or does not go together is told without torch."""

import pytest

from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.train.hyperparameters import Hyper, check_job

from ...harness.home import python
from .jobs import job


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("mlp", "synthetic"),
        ("cnn", "synthetic:100"),
        ("cnn", "npz:a/b.npz"),
        ("transformer", "text:book.txt"),
        ("transformer", "module:mine.data"),
        ("module:mine.net", "text:a:b"),
    ],
)
def test_what_goes_together_is_taken(model: str, dataset: str) -> None:
    assert check_job(job(model=model, dataset=dataset)) == Hyper()


@pytest.mark.parametrize(
    ("model", "dataset", "path", "words"),
    [
        ("mpl", "synthetic", "model", "no 'mpl'; did you mean 'mlp'?; known: mlp, cnn,"),
        ("MLP", "synthetic", "model", "no 'MLP'"),
        ("module", "synthetic", "model", "no 'module'"),
        ("mlp", "syntetic", "dataset", "no 'syntetic'; did you mean 'synthetic'?"),
        ("mlp", "synthetic:", "dataset", "no 'synthetic:'"),
        ("mlp", "npz", "dataset", "no 'npz'; did you mean 'npz:FILE'?"),
        ("transformer", "text:", "dataset", "did you mean 'text:FILE'?"),
        ("mlp", "file:///etc/passwd", "dataset", "no 'file:///etc/passwd'"),
        ("mlp", "x" * 4000, "dataset", "no 'xxx"),
        ("transformer", "synthetic", "model", "take dataset text:FILE, or model mlp or cnn"),
        ("mlp", "text:x", "model", "take dataset synthetic or npz:FILE, or model transformer"),
    ],
)
def test_what_is_unknown_or_does_not_go_together_is_named(
    model: str, dataset: str, path: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        check_job(job(model=model, dataset=dataset))

    assert caught.value.path == path
    assert words in caught.value.problem
    assert len(caught.value.problem) < 300


def test_a_job_with_a_script_is_not_for_ready_made_training() -> None:
    with pytest.raises(SpecError, match="model: missing"):
        check_job(JobSpec("x", script="train.py"))


@pytest.mark.process
def test_a_job_is_checked_without_torch() -> None:
    script = "import sys, torchloom.worker.train.hyperparameters; print('torch' in sys.modules)"

    done = python(script)

    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
