"""Logs by line: where each stands, when it was written, how grave it is."""

import json
import random
from pathlib import Path

import pytest

from torchloom.launch.logs.files import LogFiles
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.server.logs.lines import (
    LONGEST,
    OutputLine,
    Stamps,
    ends_of,
    level_of,
    lines_of,
    merged,
    outputs_of,
    record_of,
    tail_of,
)
from torchloom.server.logs.search import LogQuery, LogSearch

LEVELS = [
    ("2026-01-31 12:00:00 WARNING disk is slow", "stdout", "warning"),
    ("INFO:root:begun", "stderr", "info"),
    ("[rank0]:[W1115 21:59:10.123 socket.cpp:200] slow", "stderr", "warning"),
    ("W1115 21:59:10.123 socket.cpp:200] slow", "stderr", "warning"),
    ("[E1115 21:59:10 x.py:1] bad", "stdout", "error"),
    ("loss 0.5", "stdout", "info"),
    ("Traceback (most recent call last):", "stderr", "error"),
    ('  File "train.py", line 3, in <module>', "stderr", "error"),
    ("CRITICAL out of memory", "stdout", "critical"),
    ("DEBUG x", "stderr", "debug"),
    ("FATAL: no", "stdout", "critical"),
    ("WARN y", "stdout", "warning"),
    ("informed of INFORMATION", "stdout", "info"),
    ("x" * 200 + " ERROR", "stdout", "info"),
]


def record(folder: Path, ranks: int = 1) -> RunRecord:
    its = tuple(RankRecord("trainer", 0, n, n, logs=f"trainer/0/{n}") for n in range(ranks))
    return RunRecord("job", "job", "", "ann", "here", str(folder), "2026-01-01", ranks=its)


def written(folder: Path, rank: int, *said: tuple[str, bytes]) -> None:
    files = LogFiles(folder / f"trainer/0/{rank}")
    for stream, data in said:
        files.write(stream, data)
    files.close()


def texts(lines: list[OutputLine]) -> list[tuple[int, str, str]]:
    return [(line.output.rank, line.output.stream, line.text) for line in lines]


@pytest.mark.parametrize(("line", "stream", "level"), LEVELS)
def test_a_line_says_itself_how_grave_it_is_else_its_stream_does(
    line: str, stream: str, level: str
) -> None:
    assert level_of(line, stream) == level


def test_every_output_of_every_rank_is_read_line_by_line(tmp_path: Path) -> None:
    written(tmp_path, 0, ("stdout", b"a\nb\n"), ("stderr", b"bad\n"))
    written(tmp_path, 1, ("stdout", b"c\nhalf"))

    found = list(merged(outputs_of(record(tmp_path, 2)), {}))

    assert sorted(texts(found)) == [
        (0, "stderr", "bad"),
        (0, "stdout", "a"),
        (0, "stdout", "b"),
        (1, "stdout", "c"),
    ]


def test_half_a_line_is_one_when_no_more_will_come(tmp_path: Path) -> None:
    written(tmp_path, 0, ("stdout", b"whole\nhalf"))
    (output, _) = outputs_of(record(tmp_path))

    assert [line.text for line in lines_of(output, 0, True)] == ["whole", "half"]
    assert [line.text for line in lines_of(output, 0, False)] == ["whole"]


def test_lines_begin_where_the_ones_before_end_however_long_they_are(tmp_path: Path) -> None:
    chance = random.Random(0)
    lengths = [
        chance.choice((0, 1, 80, LONGEST - 1, LONGEST, 3 * LONGEST, 70_000)) for _ in range(60)
    ]
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    written(tmp_path, 0, ("stdout", data))
    (output, _) = outputs_of(record(tmp_path))

    found = list(lines_of(output, 0, False))

    ends = [0, *(line.end for line in found)]
    assert [line.start for line in found] == ends[:-1]
    assert ends[-1] == len(data)
    for line in found[:: len(found) // 7]:
        assert next(iter(lines_of(output, line.start, False))) == line


def test_of_a_progress_bar_the_last_state_is_shown(tmp_path: Path) -> None:
    written(tmp_path, 0, ("stderr", b"10%\r50%\r100%\r\ndone\n"))
    (_, output) = outputs_of(record(tmp_path))

    assert [line.text for line in lines_of(output, 0, False)] == ["100%", "done"]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (9, list("abc"))]
)
def test_the_tail_of_a_log_is_found_from_its_end(
    tmp_path: Path, count: int, expected: list[str]
) -> None:
    written(tmp_path, 0, ("stdout", b"a\nb\nc\nhalf"))
    (output, _) = outputs_of(record(tmp_path))

    found = lines_of(output, tail_of(output, count), False)

    assert [line.text for line in found] == expected


def test_the_ends_of_logs_are_behind_their_last_whole_lines(tmp_path: Path) -> None:
    written(tmp_path, 0, ("stdout", b"a\nb\nhalf"))

    outputs = outputs_of(record(tmp_path))

    assert ends_of(outputs) == {"trainer/0/0:stdout": 4, "trainer/0/0:stderr": 0}


def test_the_time_of_every_byte_is_that_of_the_note_before_it(tmp_path: Path) -> None:
    notes = [(round(1000 + n / 10, 3), 7 * (n // 2)) for n in range(20_000)]  # several blocks
    words = "".join(f"{time:.3f} {size} 0 {size}\n" for time, size in notes)
    (tmp_path / "times").write_text(words)
    stamps = Stamps(tmp_path, "stdout")
    chance = random.Random(1)

    offsets = [0, 6, 7, 69_999, 10**6, *(chance.randrange(70_000) for _ in range(300))]

    for offset in offsets:
        expected = next(time for time, size in reversed(notes) if size <= offset)
        assert stamps.time_at(offset) == pytest.approx(expected)
    for time in [
        0.0,
        1000.0,
        1999.95,
        2999.9,
        *(1000 + chance.random() * 2000 for _ in range(100)),
    ]:
        later = next((size for noted, size in notes if noted >= time), None)
        assert stamps.offset_at(time) == later
    stamps.close()


def test_pages_of_a_search_have_every_line_once_and_in_the_order_of_time(tmp_path: Path) -> None:
    for rank in range(3):
        lines = b"".join(b"%d-%d\n" % (rank, n) for n in range(50))
        written(tmp_path, rank, ("stdout", lines), ("stderr", b"WARNING w\nerr\n"))
    outputs, at, pages = outputs_of(record(tmp_path, 3)), {"": 0}, []

    for _ in range(30):
        search = LogSearch(outputs, at, LogQuery(), True)
        pages.append(search.take(7))
        at = search.positions

    found = [line for page in pages for line in page]
    assert sorted((line.output.key, line.start) for line in found) == sorted(
        (line.output.key, line.start) for line in merged(outputs, {})
    )
    assert [len(page) for page in pages[:22]] == [7] * 22


def test_a_search_for_gravity_or_time_leaves_out_the_rest(tmp_path: Path) -> None:
    written(tmp_path, 0, ("stdout", b"one\n"), ("stderr", b"WARNING two\nthree\n"))
    (tmp_path / "trainer/0/0/times").write_text("100.000 0 0 0\n200.000 4 12 16\n")
    outputs = outputs_of(record(tmp_path))

    def found(wish: LogQuery) -> list[str]:
        return [line.text for line in LogSearch(outputs, {}, wish, True).take(10)]

    assert found(LogQuery("warning")) == ["WARNING two", "three"]
    assert found(LogQuery("error")) == ["three"]
    assert found(LogQuery(since=150.0)) == ["three"]
    assert found(LogQuery(until=150.0)) == ["one", "WARNING two"]
    assert found(LogQuery(since=300.0)) == []
    assert found(LogQuery(tail=1)) == ["one", "three"]


@pytest.mark.parametrize("name", ["", "..", "../other", "a/b", ".hidden", "missing"])
def test_a_job_whose_name_is_no_folder_of_ours_has_no_record(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "other" / "status.json").write_text(json.dumps(record(tmp_path).to_dict()))

    assert record_of(tmp_path, name) is None
