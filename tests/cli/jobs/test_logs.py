"""`loom logs` without processes: choosing, numbering, times, and the parts that print."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from torchloom.cli.commands.cmd_logs import instant, numbers
from torchloom.cli.jobs.logs import label, split_lines
from torchloom.cli.main import main
from torchloom.errors import UserError
from torchloom.launch.records.record import RankRecord


@pytest.fixture(autouse=True)
def job(ended: Any) -> None:
    ended("a", ranks=3, logs=[f"first {rank}\nsecond {rank}\nlast {rank}" for rank in range(3)])
    ended("alone", logs=["one\ntwo\n"])


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["alone"], ["one", "two"]),
        (["a", "--ranks", "1", "--last", "1"], ["[rank1]: last 1"]),
        (["a/trainer", "--regex", "^first"], [f"[rank{n}]: first {n}" for n in range(3)]),
        (["a/trainer/0", "--ranks", "2-9", "--last", "1"], ["[rank2]: last 2"]),
        (["local://torchx/a/trainer/0", "--ranks", "0", "--last", "1"], ["[rank0]: last 0"]),
        (["a", "--role", "trainer", "--last", "1", "--ranks", "0"], ["[rank0]: last 0"]),
        (["alone", "-f"], ["one", "two"]),
        (["alone", "-f", "--last", "1"], ["two"]),
        (["alone", "--stream", "stdout"], ["one", "two"]),
        (["alone", "--stream", "stderr"], []),
    ],
)
def test_what_is_printed(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words]) == 0

    assert capsys.readouterr().out.splitlines() == lines


def test_a_line_as_json_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "a", "--json", "--ranks", "2", "--last", "1", "--stream", "stdout"]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "role": "trainer",
        "replica": 0,
        "rank": 2,
        "stream": "stdout",
        "line": "last 2",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--ranks", "7"], "no rank '7'; a has 0 to 2"),
        (["a", "--ranks", "2-1"], "no rank '2-1'; a has 0 to 2"),
        (["a", "--ranks", "0-999999999", "--role", "tutor"], "no role 'tutor'"),
        (["a", "--ranks", ""], "'' is not a list of numbers; write 0,2 or 0-3"),
        (["a", "--ranks", "x"], "'x' is not a list of numbers"),
        (["a/trianer"], "no role 'trianer'; did you mean 'trainer'?; a has: trainer"),
        (["a/trainer/3"], "no replica 'trainer/3'; a has 0 to 0"),
        (["a/b/c/d"], "'a/b/c/d' has too many parts; write JOB, JOB/ROLE or JOB/ROLE/0,1"),
    ],
)
def test_what_there_is_not_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words]) == 2

    assert message in capsys.readouterr().err


def test_a_huge_range_costs_nothing() -> None:
    (found,) = numbers("0-999999999")

    assert 5 in found


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
    ],
)
def test_a_time_may_be_so_long_ago(text: str, ago: timedelta) -> None:
    found = instant(text)

    assert found is not None
    assert abs(datetime.now(UTC) - ago - found) < timedelta(seconds=5)


def test_a_time_with_a_zone_is_that_instant() -> None:
    assert instant("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert instant(None) is None


@pytest.mark.parametrize(
    "text", ["", "soon", "10", "-1h", "1w", "999999999d", "0001-01-01", "9" * 99]
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError, match="write 30s, 10m, 2h, 1d or"):
        instant(text)


@pytest.mark.parametrize(
    ("data", "lines", "rest"),
    [
        (b"", [], b""),
        (b"a", [], b"a"),
        (b"a\nb", [b"a\n"], b"b"),
        (b"a\r\nb\n", [b"a\r\n", b"b\n"], b""),
        (b"10%\r20%\r30%", [b"10%\r", b"20%\r"], b"30%"),
        (b"10%\r20%\r", [b"10%\r"], b"20%\r"),  # it may still become \r\n
        (b"\xff\x0b\x0c\x1c\x85\n", [b"\xff\x0b\x0c\x1c\x85\n"], b""),
    ],
)
def test_lines_end_where_terminals_end_them(data: bytes, lines: list[bytes], rest: bytes) -> None:
    assert split_lines(data) == (lines, rest)


def test_names_tell_ranks_replicas_and_groups_apart() -> None:
    rank = RankRecord("trainer", 0, 1, 1, logs="trainer/0/1")
    reader = RankRecord("reader", 2, 2, 0, logs="reader/2")
    other = RankRecord("critic", 0, 0, 0, logs="critic/0/0")

    assert label([rank, reader]) == ["[rank1]: ", "[reader2]: "]
    assert label([rank, other]) == ["[trainer.rank1]: ", "[critic.rank0]: "]
