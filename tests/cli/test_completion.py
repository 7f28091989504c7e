"""Completion: what is offered where, and that a real shell offers it."""

import shutil
import subprocess
from typing import Any

import pytest

from torchloom.cli.completion import SCRIPTS, complete
from torchloom.cli.main import main
from torchloom.cli.verbs import ALIASES, VERBS
from torchloom.components.catalog import BUILTINS


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], list(VERBS)),
        (["st"], ["stop", "status"]),
        (["zz"], []),
        (["zz", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "z"], ["zsh"]),
        (["config", ""], ["init", "show"]),
        (["engines", ""], ["local"]),
        (["run", ""], []),
        (["run", "dist."], ["dist.ddp", "dist.loom", "dist.spmd"]),
        (["run", "-n", "4", "dist.d"], ["dist.ddp"]),
        (["run", "-s", ""], ["local"]),
        (["run", "--workspace", ""], []),
        (["run", "--wa"], ["--wait"]),
        (["run", "train.py", "--wa"], []),
        (["run", "-d", "train.py", ""], []),
        (["submit", "--dr"], ["--dryrun"]),
        (["logs", "--stream", "s"], ["stdout", "stderr"]),
        (["ls", "--state", "f"], ["failed"]),
        (["show", "-"], ["--wait", "--spec", "--events", "--roles", "--json", "--help"]),
        (["builtins", "utils.t"], ["utils.touch"]),
        (["builtins", "--print", "utils.t"], ["utils.touch"]),
        ([], list(VERBS)),
    ],
)
def test_what_is_offered(words: list[str], offered: list[str]) -> None:
    assert complete(words) == offered


def test_jobs_are_offered_by_id(ended: Any) -> None:
    ended("train-b")
    ended("train-a")

    assert complete(["show", ""]) == ["@", "train-a", "train-b"]
    assert complete(["stop", "train-a", "train-b"]) == ["train-b"]


def test_without_a_state_folder_only_the_newest_is_offered() -> None:
    assert complete(["logs", ""]) == ["@"]


def test_all_built_in_components_are_offered() -> None:
    names = [f"{module}.{name}" for module, found in BUILTINS.items() for name in found]

    assert complete(["components", ""]) == names


def test_every_alias_completes_like_its_verb() -> None:
    for alias, (verb, *_) in ALIASES.items():
        assert complete([alias, "--"]) == complete([verb, "--"])


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_accepts_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0

    text = capsys.readouterr().out
    assert text == SCRIPTS[shell]
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["loom", "sho"], "<show>"),
        (["loom", "show", ""], "<@><a$(touch hacked)><train-a>"),
        (["loom", "run", "--dr"], "<--dryrun>"),
        (["loom", "run", "x.py", ""], ""),
    ],
)
def test_a_real_bash_offers_it(
    words: list[str], offered: str, loom: Any, ended: Any, state: Any
) -> None:
    ended("train-a")
    (state / "runs" / "a$(touch hacked)").mkdir()
    quoted = " ".join(f"'{word}'" for word in words)
    code = (
        f'set -e; source <("{loom.path}" completion bash); COMP_WORDS=({quoted});'
        f" COMP_CWORD={len(words) - 1}; _loom; printf '<%s>' \"${{COMPREPLY[@]}}\""
    )

    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == (offered or "<>")
    assert done.stderr == ""
