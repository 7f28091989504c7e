"""The verbs that change a running job, at a real door with ranks that are made of messages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.cli.main import main

from .monitored import Plane, plane_in

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        found.job("train-1")
        yield found


def said(capsys: Captured, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def used(plane: Plane, job: str) -> list[list[tuple[int, object]]]:
    return [[(step, value) for _, step, value in rank.applied] for rank in plane.ranks[job]]


def test_a_change_is_made_on_all_ranks_and_listed_afterwards(
    plane: Plane, capsys: Captured
) -> None:
    code, out, err = said(capsys, "set", "train-1", "lr=0.03", "--reason", "flat")
    _, knobs, _ = said(capsys, "set", "--json")
    _, audit, _ = said(capsys, "inspect", "@", "audit")

    assert (code, err) == (0, "")
    assert re.fullmatch(r"lr 0\.1 -> 0\.03 at step 2 on ranks 0-1, acked in .* m?s\n", out)
    assert used(plane, "train-1") == [[(2, 0.03)]] * 2
    assert {knob["name"]: knob["value"] for knob in json.loads(knobs)}["lr"] == 0.03
    assert re.search(r"1 .* applied +lr 0\.1 -> 0\.03 at step 2 .* flat", audit)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lrr=1"], "no knob 'lrr'; did you mean 'lr'?"),
        (["lr=abc"], "lr takes a finite number, not 'abc'"),
        (["lr=2"], "lr must be at most 1, not 2"),
        (["nobody", "lr=0.1"], "no job 'nobody'"),
        (["lr=0.1", "a", "b"], "'b' is neither a second job nor NAME=VALUE"),
        (["--hold"], "nothing to set"),
        (["--replay", "none.yaml"], "cannot read none.yaml"),
        (["--replay", "x", "lr=1"], "--replay brings its own values"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    words: list[str], complaint: str, plane: Plane, capsys: Captured
) -> None:
    code, out, err = said(capsys, "set", *words)

    assert (code, out) == (2, "")
    assert complaint in err
    assert used(plane, "train-1") == [[], []]


def test_the_changes_of_one_job_are_given_to_another_at_their_steps(
    plane: Plane, capsys: Captured, tmp_path: Path
) -> None:
    said(capsys, "set", "train-1", "lr=0.03")
    said(capsys, "set", "train-1", "lr=0.02", "--at", "9")
    log = tmp_path / "changes.yaml"
    log.write_text(said(capsys, "inspect", "train-1", "audit", "--yaml")[1])
    plane.job("again-1")

    code, _, err = said(capsys, "set", "again-1", "--replay", str(log))

    assert (code, err) == (0, "")
    assert used(plane, "again-1") == used(plane, "train-1") == [[(2, 0.03), (9, 0.02)]] * 2


def test_a_pause_and_a_resume_say_where(plane: Plane, capsys: Captured) -> None:
    paused, resumed = said(capsys, "pause"), said(capsys, "resume", "train-1")

    assert (paused[0], resumed[0]) == (0, 0)
    assert paused[1].startswith("paused at step 2 on ranks 0-1, acked in ")
    assert resumed[1].startswith("resumed on ranks 0-1, acked in ")


def test_devices_are_shown_with_their_ranks_and_one_that_fails_is_marked(
    plane: Plane, capsys: Captured
) -> None:
    _, before, _ = said(capsys, "devices", "--json")
    device = json.loads(before)[0]

    code, out, _ = said(capsys, "devices", "fail", device["uuid"], "--reason", "XID 79")
    _, after, _ = said(capsys, "devices")

    assert device["processes"] == ["train-1/trainer/0"]
    assert (code, out) == (0, f"{device['uuid']} is failed; it has train-1/trainer/0\n")
    assert re.search(rf"{device['uuid']} +\S+ +failed +train-1/trainer/0 +XID 79", after)


def test_without_a_plane_the_remedy_is_named(state: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "set", "lr=0.1")

    assert (code, out) == (1, "")
    assert "loom up" in err
