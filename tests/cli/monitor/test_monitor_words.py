"""The prompt's words, its completion, and what the screen makes of numbers: without a plane."""

import math
from typing import Any

import pytest

from torchloom.cli.monitor import answers, view
from torchloom.cli.monitor.poll import PollRequest, ScreenSnapshot, SnapshotReader
from torchloom.cli.monitor.prompt import ALIASES, WORDS, PromptCommand, help_text, read_line
from torchloom.cli.monitor.prompt_input import Completer, History
from torchloom.cli.monitor.widgets import TableRow
from torchloom.client.errors import NoPlane
from torchloom.errors import NotFound

KNOWN: dict[str, Any] = {
    "jobs": [{"id": "train-1"}, {"id": "eval-2"}],
    "knobs": [{"name": "lr"}, {"name": "log_every"}],
    "devices": {"devices": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}]},
}


def known(question: str, timeout: float | None = None, **facts: Any) -> Any:
    return KNOWN[question]


def rank(number: int, step: int | None, state: str = "up", role: str = "trainer") -> dict[str, Any]:
    life = f"{role}/{number}"
    words = {"role": role, "node": "n1", "replica": life, "reason": "", "phase": "step"}
    more = {"pid": 7, "device_uuids": ["GPU-1"], "step_seconds": 0.5, "incarnation": life}
    return {"rank": number, "step": step, "state": state, **words, **more}


@pytest.mark.parametrize(
    ("line", "order"),
    [
        ("", None),
        ("  # a note", None),
        ("jobs --all", PromptCommand("jobs", (), {"--all": ""})),
        (":ls", PromptCommand("jobs")),
        (
            "set a lr=1 --at=7 --hold",
            PromptCommand("set", ("a", "lr=1"), {"--at": "7", "--hold": ""}),
        ),
        ("pause --reason 'for lunch'", PromptCommand("pause", (), {"--reason": "for lunch"})),
        ("setlr -1", PromptCommand("setlr", ("-1",))),
        ("devices drain GPU-1", PromptCommand("drain", ("GPU-1",))),
        ("stop --help", PromptCommand("help", ("stop",))),
        ("exit", PromptCommand("quit")),
    ],
)
def test_a_line_is_read_as_it_is_meant(line: str, order: PromptCommand | None) -> None:
    assert read_line(line) == order


@pytest.mark.parametrize(
    "word", ["test", "fail_device", "register_device", "setlr", "reset_lr", "quit", "exit"]
)
def test_the_words_of_the_first_monitor_are_understood(word: str) -> None:
    assert ALIASES.get(word, word) in WORDS


def test_help_fits_80_columns_and_names_every_word_and_alias() -> None:
    text = help_text()

    assert max(map(len, text.splitlines())) <= 80
    assert [line.split()[0] for line in text.splitlines()[: len(WORDS)]] == list(WORDS)
    alone = [help_text(word) for word in WORDS]
    assert all(any(alias in one for one in alone) for alias in ALIASES)
    with pytest.raises(NotFound):
        help_text("jbos")


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("pau", ["pause"]),
        ("te", ["test"]),
        ("use ", ["@", "train-1", "eval-2"]),
        ("ranks t", ["train-1"]),
        ("set l", ["lr=", "log_every="]),
        ("set train-1 lr=1 lo", ["log_every="]),
        ("set --h", ["--hold"]),
        ("fail_device G", ["GPU-1", "GPU-2"]),
        ("devices d", ["drain"]),
        ("devices fail GPU-2", ["GPU-2"]),
        ("help se", ["set", "setlr"]),
        ("nonsense x", []),
        ("quit x", []),
    ],
)
def test_a_word_is_completed_by_what_may_stand_there(line: str, choices: list[str]) -> None:
    assert Completer(known).complete(line) == choices


def test_without_a_plane_names_are_not_completed_and_words_are() -> None:
    def away(*_: object, **facts: object) -> Any:
        raise NoPlane

    completer = Completer(away)

    assert completer.complete("use t") == []
    assert completer.complete("us") == ["use"]


def test_a_lag_counts_from_the_fastest_of_the_same_role() -> None:
    ranks = [rank(0, 10), rank(1, 7, "suspect"), rank(2, 3, "gone"), rank(0, 2, role="reader")]

    assert answers.lags(ranks) == {"trainer/0": 0, "trainer/1": 3, "reader/0": 0}
    assert answers.summary(ranks) == "2 up, 1 gone, 1 suspect; rank 1 is 3 behind"


@pytest.mark.parametrize(
    ("values", "width", "height", "lines"),
    [
        ([], 5, 1, [""]),
        ([1.0, 1.0], 5, 1, ["▄▄"]),
        ([0.0, 7.0], 5, 1, ["▁█"]),
        ([0.0, 1.0, 2.0, 3.0, 9.0, 5.0], 3, 1, ["▁▃█"]),  # the highest of each pair
        ([0.0, math.nan, 7.0], 5, 1, ["▁!█"]),
        ([math.nan], 5, 1, ["!"]),
        ([0.0, 15.0], 5, 2, [" █", "▁█"]),
    ],
)
def test_a_curve_is_bars_that_keep_its_peaks_and_its_holes(
    values: list[float], width: int, height: int, lines: list[str]
) -> None:
    assert answers.spark(values, width, height) == lines


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 0.123456789, "0.12346"),
        ("loom/step_seconds", 0.0123, "12.3 ms"),
        ("loom/step_seconds", 0.512, "512 ms"),
        ("loom/step_seconds", 3.14159, "3.14 s"),
        ("loom/memory", 3 * 2**30, "3.00 GiB"),
        ("loom/cpu", 0.97, "97%"),
    ],
)
def test_a_number_has_the_unit_of_its_name(name: str, value: float, text: str) -> None:
    assert answers.number(name, value) == text


def test_losses_come_first_and_what_we_measure_last() -> None:
    names = ["loom/cpu", "accuracy", "loom/step_seconds", "val/loss", "loom/lr"]

    assert answers.ordered(names) == [
        *("val/loss", "accuracy", "loom/step_seconds", "loom/cpu", "loom/lr"),
    ]


def test_ranks_that_need_a_look_can_come_first() -> None:
    ranks = [rank(0, 10), rank(1, 4), rank(2, None, "gone"), rank(3, 10)]

    rows = view.rank_rows(ranks, worst_first=True, is_wide=False)

    assert [row.cells[0] for row in rows] == ["2", "1", "0", "3"]
    assert [(row.tone, row.toned) for row in rows] == [("dim", 1), ("warn", 3), ("", 1), ("", 1)]


def test_a_filter_takes_words_anywhere_and_numbers_as_a_whole() -> None:
    rows = view.rank_rows([rank(n, 3) for n in range(12)], False, False)
    plain = [TableRow("a", ("train-1", "RUNNING")), TableRow("b", ("eval-2", "FAILED"))]

    assert [row.cells[0] for row in view.matching(rows, "1")] == ["1"]
    assert len(view.matching(rows, "UP n1")) == 12
    assert view.matching(rows, "n2") == []
    assert view.matching(plain, "fail") == plain[1:]


def test_only_the_ends_of_known_curves_are_asked_for_until_a_new_life_begins() -> None:
    asked: list[dict[str, Any]] = []
    job = {"id": "a", "name": "a", "state": "RUNNING", "attempt": 1, "generation": 0}
    points = [[n, 0.0, float(n)] for n in range(1000)]

    def plane(question: str, timeout: float | None = None, **facts: Any) -> Any:
        if question == "metrics":
            asked.append(facts)
            shown = points[-3:] if "after" in facts else points
            return {"series": [{"name": "loss", "rank": 0, "points": shown}]}
        return {"status": {"epoch": 1}, "jobs": [job], "ranks": [rank(0, 9)]}.get(
            question, {"items": []}
        )

    looker = SnapshotReader(plane)
    first, second = looker.read(PollRequest()), looker.read(PollRequest())
    job["generation"] = 1
    looker.read(PollRequest())

    assert [facts.get("after") for facts in asked[::2]] == [None, 499, None]
    assert len(first.series[0]["points"]) == len(second.series[0]["points"]) == 1000


def test_a_plane_that_is_away_leaves_what_was_seen_and_says_why() -> None:
    def away(*_: object, **facts: object) -> Any:
        raise NoPlane

    assert SnapshotReader(away).read(PollRequest()) == ScreenSnapshot(
        trouble="no plane runs here; `loom up` starts one"
    )


def test_typed_lines_are_kept_once_and_a_long_file_is_shortened(tmp_path: Any) -> None:
    path = tmp_path / "deep" / "history"
    history = History(path)
    for line in ("jobs", "jobs", "  ", "ranks"):
        history.add(line)
    assert path.read_text() == "jobs\nranks\n"
    path.write_text("".join(f"line {n}\n" for n in range(3000)))

    again = History(path)

    assert again.lines == [f"line {n}" for n in range(2000, 3000)]
    assert path.read_text().count("\n") == 1000
    assert path.stat().st_mode & 0o077 == 0
