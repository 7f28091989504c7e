"""What is printed: tables, durations, one-line messages, the code a job leaves."""

import re
from dataclasses import replace
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.cli.output import (
    duration,
    echo,
    in_ascii,
    narrowed,
    one_line,
    shows_unicode,
    shrunk,
    table,
)
from torchloom.cli.submit.submission import exit_code
from torchloom.history.plot import in_text, panels
from torchloom.history.series import MetricSeries
from torchloom.specs.api import AppState


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("ID", "STATE"), [("a", "RUNNING"), ("long-id", "OK")]) == (
        "ID       STATE\na        RUNNING\nlong-id  OK"
    )


@pytest.mark.parametrize(
    ("widths", "room", "fit"),
    [
        ([7, 6, 3], 20, [7, 6, 3]),
        ([60, 7, 4, 3], 40, [20, 7, 4, 3]),  # one long name; nothing beside it is touched
        ([16, 7, 90], 40, [16, 7, 13]),  # a text gives way before a name does
        ([60, 7, 90], 40, [17, 7, 12]),
        ([60, 50, 4], 40, [16, 16, 4]),
        ([9, 9, 9], 10, [4, 4, 4]),
    ],
)
def test_the_longest_columns_give_way_and_no_other(
    widths: list[int], room: int, fit: list[int]
) -> None:
    assert narrowed(widths, room) == fit


@pytest.mark.parametrize(
    ("cell", "width", "shown"),
    [
        ("train-x1", 8, "train-x1"),
        ("a-very-long-name-x1", 9, "a-ve…e-x1"),
        ("waits for room", 9, "waits fo…"),
        ("abc", 1, "…"),
    ],
)
def test_a_name_loses_its_middle_and_a_text_its_end(cell: str, width: int, shown: str) -> None:
    assert shrunk(cell, width) == shown


def test_drawings_have_a_likeness_in_ascii() -> None:
    drawn = "1 ┤⠉⠒⠤⣀⡇\n  └┬── ▁▄█ a…b größe"

    assert in_ascii(drawn) == "1 +'--.|\n  ++-- _-# a~b größe"


@pytest.mark.parametrize("name", ["C.UTF-8", "C"])
def test_a_plot_in_the_locale_c_is_ascii_and_as_wide(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LC_ALL", name)
    rising = MetricSeries.of("loss", [(i, float(i), i / 100) for i in range(101)])
    drawn = in_text(panels([rising]), 60, 12)

    for line in drawn:
        echo(line)

    shown = capsys.readouterr().out.splitlines()
    assert [len(line) for line in shown] == [len(line) for line in drawn]
    assert all(line.isascii() for line in shown) is (name == "C")
    assert (shown == drawn) is (name != "C")


@pytest.mark.parametrize(
    ("variables", "is_shown"),
    [
        ({}, True),
        ({"LANG": "C"}, False),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, False),
        ({"LANG": "C", "LC_CTYPE": "en_US.utf8"}, True),
    ],
)
def test_what_may_be_drawn_is_the_locales_choice(
    variables: dict[str, str], is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert shows_unicode() is is_shown


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
