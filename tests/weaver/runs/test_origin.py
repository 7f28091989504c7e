"""Of a job's words and variables everything is told but what may be secret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.weaver.runs.origin import (
    RunOrigin,
    of_process,
    spec_shown,
    variables,
    without_secrets,
)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--api_key=abc"], ["--api_key=***"]),
        (["HF_TOKEN=abc", "train.py"], ["HF_TOKEN=***", "train.py"]),
        (["--password", "--lr", "1"], ["--password", "--lr", "1"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "***"]),  # rather too much than too little
    ],
)
def test_words_that_may_be_secret_are_hidden(words: list[str], shown: list[str]) -> None:
    assert without_secrets(words) == shown


def test_variables_are_named_and_few_of_them_are_shown() -> None:
    env = {"WANDB_API_KEY": "abc", "OMP_NUM_THREADS": "4", "PATH": "/bin"}

    assert variables(env) == {
        "names": ["OMP_NUM_THREADS", "PATH", "WANDB_API_KEY"],
        "values": {"OMP_NUM_THREADS": "4"},
    }


def test_a_spec_is_shown_without_the_values_of_its_variables() -> None:
    spec = {"name": "a", "env": {"B": "secret", "A": "x"}, "args": ["--token", "t"], "seed": 1}

    assert spec_shown(spec) == {
        "name": "a",
        "env": ["A", "B"],
        "args": ["--token", "***"],
        "seed": 1,
    }
    assert spec_shown(None) is None


def test_a_script_is_looked_for_beside_itself_before_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    origin = RunOrigin(str(tmp_path), ("python", "elsewhere/train.py", "--x"))

    assert origin.sources == (tmp_path / "elsewhere", tmp_path)
    assert RunOrigin().sources == ()


@pytest.mark.process
def test_a_process_tells_where_it_runs_and_with_which_words(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print(flush=True); input()", "more"]
    env = {**os.environ, "MINE": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = of_process(process.pid)
        finally:
            process.kill()

    assert found is not None
    assert (found.cwd, found.argv, found.pids) == (str(tmp_path), tuple(words), (process.pid,))
    assert found.env["MINE"] == "1"
    assert of_process(2**22 + 1) is None
