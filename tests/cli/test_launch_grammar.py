"""`loom launch` and `torchrun` at the door: one grammar, one value, one help."""

import contextlib
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.cli.commands.cmd_launch import command
from torchloom.cli.main import main
from torchloom.components.dist import ddp
from torchloom.errors import UserError
from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand, Rendezvous
from torchloom.launch.grammar.parser import OURS
from torchloom.launch.grammar.values import NodeCount, Streams
from torchloom.launch.shim import CHOICE, shimmed
from torchloom.settings import environment

WORDS = [
    *("-n", "2", "--np=4", "--ppn", "auto", "--nnodes", "1:2", "-m", "--no-python", "--standalone"),
    *("--tee", "3", "--launcher", "srun", "-x", "FOO", "--", "train.py", "--timeout", "0", "-h"),
]


def at_the_door(argv: list[str]) -> LaunchCommand | str:
    """Return the value that the verb is called with, or why it is not."""
    try:
        context = command.make_context("loom launch", list(argv))
    except UserError as error:
        return str(error)
    except click.exceptions.Exit:
        return "help"
    asked: LaunchCommand = context.params["asked"]
    return asked


def in_the_rooms(argv: list[str]) -> LaunchCommand | str:
    try:
        return LaunchCommand.parse(argv, environment())
    except UserError as error:
        return "help" if error.code == "help_asked" else str(error)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.booleans(), st.lists(st.sampled_from(WORDS), max_size=8))
def test_the_verb_hands_on_what_the_words_say(shim: bool, words: list[str]) -> None:
    argv = [AS_TORCHRUN, *words] if shim else words

    with contextlib.redirect_stdout(None):
        assert at_the_door(argv) == in_the_rooms(argv)


def test_the_verb_reads_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")

    assert at_the_door(["a"]) == LaunchCommand(("a",), per_node=3)


def test_help_shows_every_option_that_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "2", "--help"]) == 0

    shown = capsys.readouterr().out
    for option in OURS.options:
        if option.names and option.field != "help":
            assert (f"  {', '.join(option.names)}" in shown) is not option.hidden


def test_the_help_of_the_shim_is_about_torchruns_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["launch", AS_TORCHRUN, "--he"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("usage: torchrun [OPTIONS] PROGRAM [ARGS]...\n")
    assert "--rdzv-endpoint VALUE\n" in shown
    assert "--ppn" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nnodes", "4:2", "x"], "--nnodes '4:2': the minimum comes first; write --nnodes 2:4"),
        (["--hostfiel", "x"], "no option '--hostfiel'; did you mean '--hostfile'?; `loom launch"),
        (
            ["-x", "FOO", "--", "true"],
            "-x is not an option of loom launch, and no other launcher is",
        ),
        (["--per-rank", "true"], "--per-rank: the agent starts a host's ranks together"),
        ([AS_TORCHRUN, "--ppn", "2", "x"], "no option '--ppn'"),
        (["--role", "\x1b[31m" * 50, "--np", "\n" * 999, "x"], "--np '"),
    ],
)
def test_bad_words_are_one_line_and_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *words]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"loom: {message}")
    assert said.count("\n") == 1
    assert said[:-1].isprintable()


def test_what_torchxs_component_writes_is_read() -> None:
    app = ddp("--lr", "a b", script="train.py", j="1:2x4", rdzv_conf="timeout=60", name="/x")
    _, *words = shlex.split(app.roles[0].args[1])

    assert at_the_door([AS_TORCHRUN, *words]) == LaunchCommand(
        ("train.py", "--lr", "a b"),
        per_node=4,
        nodes=NodeCount(1, 2),
        node_rank=0,
        role="",
        tee=Streams(3),
        rdzv=Rendezvous(
            "c10d", "$${${rank0_env}:=localhost}:29500", "${app_id}", (("timeout", "60"),)
        ),
        master_addr="127.0.0.1",
        as_torchrun=True,
    )


@pytest.mark.process
@pytest.mark.parametrize("choice", ["", pytest.param("real", marks=pytest.mark.needs("torch"))])
def test_a_batch_file_that_calls_torchrun_runs_under_either(
    choice: str, script: Any, state: Path
) -> None:
    script(
        "import json, os, sys\n"
        "env = os.environ\n"
        "told = [sys.argv[1:], env['RANK'], env['ROLE_NAME'], 'LOOM_JOB' in env]\n"
        "open('told' + env['RANK'], 'w').write(json.dumps(told))\n",
        "train",
    )
    env = {**environment(), **shimmed(environment()), CHOICE: choice}
    line = "torchrun --standalone --nproc-p 2 train -n 'a b' --nnodes 7"

    done = subprocess.run(
        ["bash", "-c", line], env=env, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    told = [json.loads(Path(f"told{rank}").read_text()) for rank in (0, 1)]
    words = ["-n", "a b", "--nnodes", "7"]
    assert told == [[words, str(rank), "default", choice == ""] for rank in (0, 1)]


def test_the_page_about_the_command_line_names_every_option_that_is_not_hidden() -> None:
    page = (Path(__file__).parents[2] / "docs" / "internals" / "cli.md").read_text()
    section = page.partition("## Launch ranks like torchrun")[2].partition("\n## ")[0]

    for option in OURS.options:
        for name in option.names if not option.hidden else ():
            assert f"`{name}" in section, name
