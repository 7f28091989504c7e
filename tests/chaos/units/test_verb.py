"""`loom chaos` as a command: what it refuses, what it asks, what it shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.chaos.faults.kinds import KINDS
from torchloom.chaos.record import FILE
from torchloom.cli.main import main
from torchloom.specs.api import AppState

from .standins import StandIns

Make = Callable[..., StandIns]
Out = pytest.CaptureFixture[str]
DRAW = ["--mtbf", "5s", "--seed", "7"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give --plan FILE, or --mtbf 5s for random faults"),
        (["--plan", "p", *DRAW], "--plan cannot be combined with --mtbf"),
        ([*DRAW, "--faults", "3", "--for", "1m"], "--faults and --for exclude each other"),
        (
            [*DRAW, "--kinds", "kill,stab"],
            "did you mean 'stop'?; known: kill, stop, raise",
        ),
        (["--mtbf", "0s"], "--mtbf is 0; write a time like 5s"),
        (["--mtbf", "soon"], "--mtbf: 'soon' is not a time; write 5s, 200ms, 2m or 1h"),
        (["--plan", "absent.yaml"], "cannot read the plan absent.yaml: No such file"),
        (["--plan", "back.yaml"], "back.yaml: fault 1: at is -1; it must be 0 or more seconds"),
        ([*DRAW, "--kinds", "cut-link"], "cut-link needs"),
        ([*DRAW, "--kinds", "kill,kill-nats"], "the plane has no NATS server of its own"),
        ([*DRAW, "--dryrun", "--json"], "--dryrun prints YAML for --plan"),
        (
            ["--mtbf", "1h", "--for", "1ms", "--seed", "7"],
            "the plan has no faults; give it more time",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_struck(
    words: list[str], why: str, standins: Make, capsys: Out
) -> None:
    job = standins(ranks=1)
    Path("back.yaml").write_text("- {at: -1, kind: kill}\n")

    code = main(["chaos", "train-a", "-y", *words])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert why in said.err
    assert job.processes[0].poll() is None
    assert not (job.folder.path / FILE).exists()


def test_a_job_that_is_over_is_refused(standins: Make, capsys: Out) -> None:
    standins().write(AppState.FAILED)

    assert main(["chaos", "train-a", *DRAW]) == 2

    assert "train-a has ended (failed)" in capsys.readouterr().err


def test_the_plan_of_a_seed_is_shown_and_is_one_that_can_be_followed(
    standins: Make, capsys: Out
) -> None:
    standins(ranks=2)
    words = ["chaos", "@", *DRAW, "--kinds", "kill,stop,cut-link", "--faults", "6"]

    assert main([*words, "--link", "h1/eth0", "--dryrun"]) == 0
    drawn = capsys.readouterr().out
    Path("plan.yaml").write_text(drawn)
    assert main(["chaos", "@", "--plan", "plan.yaml", "--dryrun"]) == 0

    assert capsys.readouterr().out == drawn
    assert len(drawn.splitlines()) == 6


def test_the_kinds_are_listed_without_a_job(capsys: Out) -> None:
    assert main(["chaos", "--kinds", "help"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["KIND", *KINDS]


@pytest.mark.process
def test_on_a_terminal_it_asks_first_and_takes_no_for_an_answer(
    standins: Make, on_terminal: Any
) -> None:
    job = standins(ranks=1)

    terminal = on_terminal("chaos", "train-a", *DRAW, "--faults", "3")
    terminal.expect(b"inject 3 faults into train-a (kill)? [y/N]: ")
    terminal.send(b"n\n")

    assert terminal.wait() == 130
    assert job.processes[0].poll() is None
    assert not (job.folder.path / FILE).exists()
