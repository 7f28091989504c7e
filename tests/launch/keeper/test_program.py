import subprocess

import pytest

from torchloom.errors import UserError
from torchloom.launch.keeper.python_command import colon_proof, program


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py --lr 1", "/py -u train.py --lr 1"),
        ("-m pkg.train -x", "/py -u -m pkg.train -x"),
        ("python train.py", "python train.py"),
        ("./run.sh a.py", "./run.sh a.py"),
        ("echo -m", "echo -m"),
    ],
)
def test_python_is_put_before_scripts_and_modules_only(words: str, command: str) -> None:
    assert program(words.split(), "/py") == tuple(command.split())


def test_no_python_takes_a_script_as_the_program_it_is() -> None:
    assert program(["./train.py", "-a"], "/py", no_python=True) == ("./train.py", "-a")


@pytest.mark.parametrize(
    ("words", "no_python", "why"),
    [
        ([], False, "no command to launch"),
        (["-m"], False, "-m names no module"),
        (["-m", "a"], True, "--no-python and -m contradict each other"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], no_python: bool, why: str) -> None:
    with pytest.raises(UserError, match=why):
        program(words, "/py", no_python)


def test_a_command_without_a_colon_is_left_alone() -> None:
    assert colon_proof(["echo", "a:b"]) == ("echo", "a:b")


@pytest.mark.process
def test_a_bare_colon_is_hidden_and_the_words_survive() -> None:
    words = ["printf", "%s|", "a b", ":", "$HOME", "it's", "x\ny"]

    hidden = colon_proof(words)

    assert ":" not in hidden
    assert subprocess.run(hidden, capture_output=True, check=True).stdout == (
        subprocess.run(words, capture_output=True, check=True).stdout
    )
