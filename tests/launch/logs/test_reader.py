import math
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from torchloom.launch.logs.reader import Span, Tail, WholeLines, chunks, lines


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def write(directory: Path, text: bytes, times: str = "", stream: str = "combined") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / f"{stream}.log", "ab") as file:
        file.write(text)
    if times:
        (directory / "times").write_text(times)
    return directory


def timed(directory: Path) -> Path:
    """Write a line a second: `at 1` was written at the instant 1, and so on to 4."""
    text = b"".join(f"at {n}\n".encode() for n in range(1, 5))
    return write(directory, text, "".join(f"{n}.000 0 0 {(n - 1) * 5}\n" for n in range(1, 5)))


def read(directory: Path, since: float | None = None, until: float | None = None) -> list[str]:
    span = Span(None if since is None else at(since), None if until is None else at(until))
    return list(lines([Tail(directory, span=span)]))


class Writer:
    """Stands for the wait of a follower: each time it is asked, it does the next thing."""

    def __init__(self, *acts: "tuple[Path, bytes]") -> None:
        self.acts = list(acts)

    def __call__(self, pause: float) -> bool:
        if self.acts:
            write(*self.acts.pop(0))
        return not self.acts


class Clock:
    """A time that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


# Lines that are rewritten.


def test_a_progress_bar_is_a_state_a_second_and_the_last(tmp_path: Path) -> None:
    clock = Clock()
    bar, shown = WholeLines(1.0, clock), []
    for at_time, data in (
        (0.0, b"begin\n\r  0%|    |"),
        (0.1, b"\r 10%|#   |"),
        (0.5, b"\r 50%|##  |\r 60"),
        (1.2, b"%|## |\r 70%|## |"),
        (1.3, b"\r 80%|## |"),
        (1.4, b"\r100%|####|\nend"),
    ):
        clock.now = at_time
        shown.append([line.decode() for line in bar.take(data)])

    assert shown == [["begin"], ["  0%|    |"], [], [" 60%|## |"], [], ["100%|####|"]]
    assert bar.end() == [b"end"]


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([b"a\r\nb\r\n"], [b"a", b"b"]),
        ([b"10%\r20%\r", b"\n"], [b"20%"]),  # shown before its newline came, and not twice
        ([b"10%\r", b"20%\r", b"30%\r"], [b"10%", b"30%"]),
        ([b"\n\n"], [b"", b""]),
        ([b"\r 10%\r      \rdone\n"], [b"done"]),
        ([b"\x1b[A\r 50%\x1b[K\n"], [b" 50%"]),  # nested bars move the cursor
        ([b"\x1b[31mred\x1b[0m\n"], [b"\x1b[31mred\x1b[0m"]),
    ],
)
def test_no_line_has_what_would_tear_another(parts: list[bytes], shown: list[bytes]) -> None:
    bar = WholeLines(1.0, Clock())

    found = [line for part in parts for line in bar.take(part)] + bar.end()

    assert found == shown


def test_an_endless_bar_takes_no_memory() -> None:
    bar = WholeLines(math.inf, Clock())

    for _ in range(1000):
        bar.take(b"\r" + b"x" * 100)

    assert len(bar._rest) < 300


def test_the_lines_of_a_log_are_as_a_terminal_leaves_them_or_as_they_were_written(
    tmp_path: Path,
) -> None:
    write(tmp_path, b"\r 0%\r 50%\r100%\nend\r")

    assert list(lines([Tail(tmp_path)], seconds=math.inf)) == ["100%\n", "end"]
    assert list(lines([Tail(tmp_path)], regex="50", seconds=math.inf)) == []
    assert list(lines([Tail(tmp_path)])) == ["\r 0%\r 50%\r100%\n", "end\r"]


# Whole logs.


def test_lines_come_with_their_newline_and_the_last_without_one(tmp_path: Path) -> None:
    write(tmp_path, b"one\n\ntwo\nthr")

    assert list(lines([Tail(tmp_path)])) == ["one\n", "\n", "two\n", "thr"]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    write(tmp_path, "10 %\r20 %\r\nline\u2028still\x0bstill\n".encode())

    assert list(lines([Tail(tmp_path)])) == ["10 %\r20 %\r\n", "line\u2028still\x0bstill\n"]


def test_bytes_that_are_no_text_do_not_stop_the_reader(tmp_path: Path) -> None:
    write(tmp_path, b"\xff\xfe\nnext\n")

    assert list(lines([Tail(tmp_path)])) == ["\ufffd\ufffd\n", "next\n"]


def test_each_stream_is_read_from_its_own_file(tmp_path: Path) -> None:
    for stream in ("stdout", "stderr", "combined"):
        write(tmp_path, stream.encode(), stream=stream)

    found = [list(lines([Tail(tmp_path, name)])) for name in ("stdout", "stderr", "combined")]

    assert found == [["stdout"], ["stderr"], ["combined"]]


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert list(lines([Tail(tmp_path / "nowhere")])) == []


def test_several_logs_are_told_apart_by_their_prefix(tmp_path: Path) -> None:
    first, second = write(tmp_path / "0", b"a\nb\n"), write(tmp_path / "1", b"c")

    found = list(lines([Tail(first), Tail(second)], ["[0]: ", "[1]: "]))

    assert found == ["[0]: a\n", "[0]: b\n", "[1]: c"]


def test_a_regex_is_looked_for_in_the_line_and_not_in_its_prefix(tmp_path: Path) -> None:
    write(tmp_path, b"loss 1\nstep 2\nloss 3")

    assert list(lines([Tail(tmp_path)], ["loss: "], regex="^loss")) == [
        "loss: loss 1\n",
        "loss: loss 3",
    ]


def test_a_log_larger_than_one_read_is_whole(tmp_path: Path) -> None:
    count = 200_000
    write(tmp_path, b"".join(b"%012d\n" % n for n in range(count)))

    found = list(lines([Tail(tmp_path)]))

    assert found == [f"{n:012d}\n" for n in range(count)]


# Parts of a log.


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (None, None, ["at 1\n", "at 2\n", "at 3\n", "at 4\n"]),
        (2, None, ["at 2\n", "at 3\n", "at 4\n"]),
        (2.5, None, ["at 3\n", "at 4\n"]),
        (0, None, ["at 1\n", "at 2\n", "at 3\n", "at 4\n"]),
        (9, None, []),
        (None, 2, ["at 1\n", "at 2\n"]),
        (None, 0.5, []),
        (None, 9, ["at 1\n", "at 2\n", "at 3\n", "at 4\n"]),
        (2, 3, ["at 2\n", "at 3\n"]),
        (3, 2, []),
    ],
)
def test_a_span_of_time_is_a_part_of_the_log(
    tmp_path: Path, since: float | None, until: float | None, found: list[str]
) -> None:
    timed(tmp_path)

    assert read(tmp_path, since, until) == found


def test_a_span_begins_at_the_start_of_a_line(tmp_path: Path) -> None:
    write(tmp_path, b"begun early, ended late\nnext\n", "1.000 0 0 0\n5.000 0 0 13\n")

    assert read(tmp_path, since=4) == ["next\n"]


def test_a_span_that_begins_inside_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    write(tmp_path, b"begun early", "1.000 0 0 0\n5.000 0 0 5\n")
    tail = Tail(tmp_path, span=Span(since=at(4)))
    assert tail.read() == b""

    write(tmp_path, b", ended late\nnext\n")

    assert tail.read() == b"next\n"


def test_a_torn_line_of_times_is_none(tmp_path: Path) -> None:
    write(tmp_path, b"old\nnew\n", "1.000 0 0 0\n2.000 0 0 4\n3.0")

    assert read(tmp_path, since=2) == ["new\n"]


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (3, None, ["c", "d"]),  # the clock stood at 101 when it was set back to 2
        (1, None, ["a", "b", "2", "c", "d"]),
        (50, None, []),  # is still to come
        (None, 3, ["a", "b", "2", "c"]),
        (3, 3, ["c"]),
    ],
)
def test_a_span_of_time_holds_where_the_clock_was_set_back(
    tmp_path: Path, since: float | None, until: float | None, found: list[str]
) -> None:
    stamps = "".join(f"{n}.000 0 0 {2 * i}\n" for i, n in enumerate((100, 101, 2, 3, 4)))
    write(tmp_path, b"a\nb\n2\nc\nd\n", stamps)

    assert read(tmp_path, since, until) == [f"{line}\n" for line in found]


def test_a_zone_of_the_clock_does_not_matter(tmp_path: Path) -> None:
    timed(tmp_path)
    local = at(3).astimezone()

    assert list(lines([Tail(tmp_path, span=Span(since=local))])) == ["at 3\n", "at 4\n"]


# Growing logs.


def test_a_follower_sees_what_comes_until_it_is_over(tmp_path: Path) -> None:
    write(tmp_path, b"there\n")
    wait = Writer((tmp_path, b"com"), (tmp_path, b"ing\n"), (tmp_path, b"last"))

    assert list(lines([Tail(tmp_path)], wait=wait)) == ["there\n", "coming\n", "last"]


def test_a_follower_waits_for_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    log = tmp_path / "later"
    wait = Writer((tmp_path / "other", b""), (log, b"here\n"))

    assert list(lines([Tail(log)], wait=wait)) == ["here\n"]


def test_a_follower_of_two_logs_keeps_their_half_lines_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    wait = Writer((first, b"a"), (second, b"b"), (first, b"A\n"), (second, b"B\n"))

    found = list(lines([Tail(first), Tail(second)], ["0:", "1:"], wait=wait))

    assert found == ["0:aA\n", "1:bB\n"]


def test_a_follower_since_an_instant_to_come_starts_there(tmp_path: Path) -> None:
    write(tmp_path, b"old\n", "1.000 0 0 0\n")
    tail = Tail(tmp_path, span=Span(since=at(5)))
    assert tail.read() == b""

    write(tmp_path, b"new\n", "1.000 0 0 0\n6.000 0 0 4\n")

    assert tail.read() == b"new\n"


def test_a_follower_waits_longer_the_longer_nothing_comes(tmp_path: Path) -> None:
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 6

    list(chunks([Tail(tmp_path)], wait))

    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_a_character_cut_in_two_by_a_read_is_one(tmp_path: Path) -> None:
    word = "naïve\n".encode()
    wait = Writer((tmp_path, word[:3]), (tmp_path, word[3:]))

    assert list(lines([Tail(tmp_path)], wait=wait)) == ["naïve\n"]


def test_a_reader_holds_no_file_between_reads(tmp_path: Path) -> None:
    tail = Tail(write(tmp_path, b"x"))
    before = set(os.listdir("/proc/self/fd"))

    tail.read()

    assert set(os.listdir("/proc/self/fd")) <= before
