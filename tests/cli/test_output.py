"""What is printed: tables, durations, one-line messages, the code a job leaves."""

import re
from dataclasses import replace
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.cli.output import duration, one_line, table
from torchloom.cli.submission import exit_code
from torchloom.specs.api import AppState


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("ID", "STATE"), [("a", "RUNNING"), ("long-id", "OK")]) == (
        "ID       STATE\na        RUNNING\nlong-id  OK"
    )


def test_a_cell_cannot_forge_a_line_or_move_the_cursor() -> None:
    assert table(("A",), [("x\nloom: y\x1b[2J",)]) == "A\nx?loom: y?[2J"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (90000, "1d1h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one", "one"),
        ("head:\n  first\n  second", "head: first; second"),
        ("a\x1b[31mb\x00", "a?[31mb?"),
        ("x" * 30, "x" * 20 + "..."),
    ],
)
def test_a_message_is_one_line(message: str, line: str) -> None:
    assert one_line(message, 20 if len(message) == 30 else 100) == line


@pytest.mark.parametrize(
    ("at", "codes", "code"),
    [
        (AppState.SUCCEEDED, (0, 0), 0),
        (AppState.SUCCEEDED, (0, 3), 0),  # enough replicas did what they had to
        (AppState.FAILED, (0, 3), 3),
        (AppState.FAILED, (-9, 0), 137),
        (AppState.FAILED, (0, 0), 1),
        (AppState.CANCELLED, (-15, 0), 143),
        (AppState.CANCELLED, (0,), 0),
        (AppState.FAILED, (), 1),
    ],
)
def test_the_code_of_a_job_is_what_a_shell_would_see(
    at: AppState, codes: tuple[int, ...], code: int, ended: Any
) -> None:
    record = ended("train-a", at=at, ranks=max(1, len(codes)), codes=codes or (0,))
    record = replace(record, ranks=record.ranks[: len(codes)])

    assert exit_code(record) == code


def test_ranks_that_were_ended_on_behalf_of_the_first_do_not_give_the_code(ended: Any) -> None:
    record = ended("train-a", at=AppState.FAILED, ranks=2, codes=(-15, 5))
    told = replace(record.ranks[0], state=AppState.CANCELLED, ended_at="2026-01-01")
    record = replace(record, ranks=(told, record.ranks[1]))

    assert exit_code(record) == 5


def test_jobs_are_listed_newest_first_and_a_screenful(
    ended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(32):
        ended(f"train-{number:02}", created_at=f"2026-01-01T00:00:{number:02}+00:00")

    assert main(["ls"]) == 0

    head, *rows, more = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "STATE", "STEP", "AGE", "TOOK", "REASON"]
    assert [row.split()[0] for row in rows] == [f"train-{n:02}" for n in range(31, 1, -1)]
    assert more == "(2 older: loom ls --all)"


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--limit", "1"], ["b"]),
        (["--all"], ["b", "a"]),
        (["--state", "failed"], ["a"]),
        (["--state", "RUNNING"], []),
    ],
)
def test_jobs_are_chosen_by_state_and_number(
    words: list[str], ids: list[str], ended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("a", at=AppState.FAILED, created_at="2026-01-01T00:00:00+00:00")
    ended("b")

    assert main(["ls", *words]) == 0

    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows if row[0] != "("] == ids


def test_piped_a_long_reason_is_not_cut(ended: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "exit_code_1_" + "x" * 100
    ended("a", at=AppState.FAILED, reason=reason)

    main(["ls"])

    assert reason in capsys.readouterr().out


def test_a_job_is_shown_with_why_it_failed(
    ended: Any, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("a", at=AppState.FAILED, reason="exit_code_1_trainer_0", codes=(1,), logs=["x\n" * 20])
    (state / "runs/a/logs/trainer/0/stderr.log").write_text("start\n" * 9 + "ValueError: bad\n")

    assert main(["show", "a"]) == 0

    out = capsys.readouterr().out
    assert re.search(r"^state +FAILED  exit_code_1_trainer_0$", out, re.MULTILINE)
    assert out.endswith("first error:\n" + "start\n" * 7 + "ValueError: bad\n")


def test_what_a_rank_said_on_its_terminal_is_its_last_word_too(
    ended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("a", at=AppState.FAILED, codes=(1,), logs=["ValueError: bad\n"])

    main(["show", "a"])

    assert capsys.readouterr().out.endswith("first error:\nValueError: bad\n")


def test_an_event_cannot_forge_a_line(
    ended: Any, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("a")
    (state / "runs/a/events.jsonl").write_text(
        '{"time": "T", "event": "cancelled", "reason": "x\\ny\\u001b[2J"}\n'
    )

    main(["show", "a", "--events"])

    assert capsys.readouterr().out == "T  cancelled  reason=x?y?[2J\n"
