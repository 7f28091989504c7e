"""`python -m torchloom.worker.train`: what it is told, and what it says when that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.serialize import read_spec
from torchloom.worker.train.__main__ import main

from .jobs import job, words

DEMO = Path(__file__).parents[3] / "examples" / "jobs" / "mnist-ddp-demo.yaml"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("", "no job: give a file"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"name": "x", "name": "y"}', "name: is given twice"),
        ('{"name": "x"}', "nothing to run"),
        ('{"name": "x", "script": "a.py"}', "model: missing"),
        (words({"lr": "fast"}), "hyperparameters.lr: expected a number"),
        (words({"lr": {"$ref": 1}}), "hyperparameters.lr: expected a number"),
        (words(model="../../etc/passwd"), "model: no '../../etc/passwd'"),
    ],
)
def test_a_wrong_job_is_told_in_one_line_and_exit_code_2(
    told: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([], {"LOOM_JOB_SPEC": told})

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert err.startswith("loom train: ")
    assert len(err) < 500


def test_a_file_is_read_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nmodel: mlp\ndataset: synthetic\nhyperparameters: {epoch: 1}\n")

    codes = main([str(path)], {}), main(["nowhere.yaml"], {}), main(["a", "b"], {})

    first, second, third = capsys.readouterr().err.splitlines()
    assert codes == (2, 2, 2)
    assert (
        first == "loom train: hyperparameters.epoch: unknown hyperparameter; did you mean 'epochs'?"
    )
    assert second.startswith("loom train: nowhere.yaml: cannot be read")
    assert third == "loom train: one job at a time: got 2 arguments, give one file"


def test_an_app_is_not_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "app.json"
    path.write_text(json.dumps({"name": "x", "roles": [{"name": "a", "image": ""}]}))

    assert main([str(path)], {}) == 2
    assert "this is an app" in capsys.readouterr().err


def test_the_example_is_the_public_format_word_for_word() -> None:
    public: dict[str, Any] = {
        "framework": "pytorch",
        "model": "mlp",
        "dataset": "synthetic",
        "resources": {"workers": 4, "gpus_per_worker": 0},
        "distributed": {"strategy": "data_parallel", "backend": "gloo"},
        "checkpointing": {"enabled": True, "every_n_steps": 200, "store": "local"},
        "compression": {"enabled": False},
    }

    expected = job({"batch_size": 64, "lr": 0.001, "epochs": 2}, name="mnist-ddp-demo", **public)
    assert read_spec(DEMO) == expected
