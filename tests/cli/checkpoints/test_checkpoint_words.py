"""The words behind `loom checkpoint`: the first of them says whether a job or a store is meant."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.checkpoints.inventory import job_and_steps, size
from torchloom.cli.checkpoints.tensors import sides
from torchloom.cli.commands.cmd_checkpoint import command

from ..monitored import Plane, plane_in
from ..test_json import problems
from .stored import Captured, commit, said


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        yield found


def test_any_other_first_word_is_a_job_that_saves(plane: Plane, capsys: Captured) -> None:
    plane.job("train-1")

    code, out, err = said(capsys, "train-1", "--reason", "lunch")
    _, told, _ = said(capsys, "--json")

    assert (code, err) == (0, "")
    assert re.fullmatch(r"saved at step \d+ on ranks 0-1, acked in .*\n", out)
    outcome = json.loads(told)
    assert (outcome["kind"], outcome["job"], outcome["checkpoint"]) == (
        "checkpoint",
        "train-1",
        None,
    )
    assert problems("checkpoint", outcome) == []


def test_a_job_that_is_called_ls_is_named_by_its_id(
    ended: Callable[..., Any], state: Path, capsys: Captured
) -> None:
    ended("ls-x1", name="ls")
    commit(state / "runs" / "ls-x1" / "checkpoints", 3)

    code, out, _ = said(capsys, "ls", "ls", "--json")

    assert code == 0
    assert [one["job"] for one in json.loads(out)] == ["ls-x1"]
    assert "no job 'ls-x1'" not in said(capsys, "ls-x1")[2]


def test_help_tells_of_both(capsys: Captured) -> None:
    code, out, _ = said(capsys, "--help")

    assert code == 0
    assert "--no-wait" in out
    assert [name for name in command.commands if f"  {name} " not in out] == []


@pytest.mark.parametrize("name", list(command.commands))
def test_each_command_explains_itself(name: str, capsys: Captured) -> None:
    code, out, _ = said(capsys, name, "--help")

    assert code == 0
    assert out.startswith(f"Usage: loom checkpoint {name} ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], ("", [])),
        (["gpt"], ("gpt", [])),
        (["12"], ("", [12])),
        (["gpt", "12", "007"], ("gpt", [12, 7])),
    ],
)
def test_a_first_word_that_is_no_number_is_the_job(
    words: list[str], meant: tuple[str, list[int]]
) -> None:
    assert job_and_steps(words) == meant


@pytest.mark.parametrize(
    "words",
    [("a:10", "a:20"), ("a:10", "20"), ("10", "a:20"), ("a", "10", "20"), ("@", "10", "20")],
)
def test_each_side_of_a_comparison_may_say_its_job(
    words: tuple[str, ...], ended: Callable[..., Any], state: Path
) -> None:
    ended("a")
    for step in (10, 20):
        commit(state / "runs" / "a" / "checkpoints", step)

    found = sides(words)

    assert [(one.job, step) for one, step in found] == [("a", 10), ("a", 20)]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (4096, "4.1 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (2_340_000_000, "2.34 GB"),
    ],
)
def test_sizes_are_said_as_people_read_them(count: int, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize("words", [["verify"], ["diff", "1", "2"], ["export", "-o", "m.pt"]])
def test_what_reads_the_store_is_done_where_it_is(
    words: list[str], state: Path, capsys: Captured
) -> None:
    (state / "login.json").write_text("{}")

    code, out, err = said(capsys, *words)

    assert (code, out) == (2, "")
    assert f"`checkpoint {words[0]}`, which reads the store directly, is not available" in err
