"""The verbs that change a running job, at a real door with ranks that are made of messages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.cli.main import main

from ..monitored import Plane, plane_in

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
        (["lr=0.1", "a", "b"], "'b' is not NAME=VALUE"),
        (["--hold"], "nothing to set"),
        (["--replay", "none.yaml"], "cannot read none.yaml"),
        (["--replay", "x", "lr=1"], "--replay takes values and steps from the file"),
        (["--replay", "x", "--undo"], "--replay takes values and steps from the file"),
        (["--undo"], "nothing to undo in job train-1: no change of knobs is in force"),
        (["--undo", "c9"], "no change of knobs has the id 'c9'"),
        (["--undo", "c9", "lr=1"], "--undo restores earlier values"),
        (["lr=0.2", "--for", "3"], "--for needs a guard"),
        (["lr=0.2", "--guard", "high"], "'high' is not a guard condition"),
        (["lr=0.2", "--guard", "loss>1"], "no metric 'loss'; it has logged nothing"),
        (["--guard", "loss>1"], "nothing to set"),
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


def test_a_change_is_undone_and_what_was_undone_is_given_to_another_job_too(
    plane: Plane, capsys: Captured, tmp_path: Path
) -> None:
    said(capsys, "set", "train-1", "lr=0.03", "--json")

    code, out, _ = said(capsys, "set", "train-1", "--undo", "--at", "9")
    _, audit, _ = said(capsys, "inspect", "train-1", "audit", "--json")
    log = tmp_path / "changes.yaml"
    log.write_text(said(capsys, "inspect", "train-1", "audit", "--yaml")[1])
    plane.job("again-1")
    said(capsys, "set", "again-1", "--replay", str(log))
    _, again, _ = said(capsys, "inspect", "again-1", "audit", "--json")

    first, second = json.loads(audit)
    assert code == 0
    assert re.fullmatch(
        rf"lr 0.1 at step 9 on ranks 0-1, acked in .* m?s, undoes {first['id']}\n",
        out.replace("0.1 -> 0.1", "0.1"),
    )
    assert (second["payload"]["undo"], second["reason"]) == (first["id"], f"undo of {first['id']}")
    assert json.loads(again)[1]["payload"]["undo"] == json.loads(again)[0]["id"]
    assert used(plane, "again-1") == used(plane, "train-1") == [[(2, 0.03), (9, 0.1)]] * 2


def test_a_guarded_change_says_so_and_the_audit_what_became_of_it(
    plane: Plane, capsys: Captured
) -> None:
    plane.log("train-1", "loss", 1.0, 1.0)

    _, out, _ = said(capsys, "set", "lr=0.03", "--guard", "loss>2x", "--for", "20")
    plane.log("train-1", "loss", 1.0, 1.0, 1.5, 3.0)
    _, audit, _ = said(capsys, "inspect", "@", "audit")

    assert out.splitlines()[1] == "guard loss>2x over 20 steps"
    found = "guard loss>2x over 20 steps: reverted, loss was 3 in step 3, 1 before"
    assert found in audit
    assert "undo of" in audit


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
    assert (code, out) == (0, f"{device['uuid']} is failed; used by train-1/trainer/0\n")
    assert re.search(rf"{device['uuid']} +\S+ +failed +train-1/trainer/0 +XID 79", after)


def test_a_device_that_is_not_there_is_not_made_up(plane: Plane, capsys: Captured) -> None:
    refused = said(capsys, "devices", "fail", "GPU-7")
    said(capsys, "devices", "register", "GPU-7")
    code, out, _ = said(capsys, "devices", "fail", "GPU-7")

    assert refused[0] == 2
    assert "no device 'GPU-7'" in refused[2]
    assert (code, out) == (0, "GPU-7 is failed; used by no rank\n")


def test_without_a_plane_the_remedy_is_named(state: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "set", "lr=0.1")

    assert (code, out) == (1, "")
    assert "loom up" in err
