"""Who says `met`: the samples, enough of them, beside a peer that ran."""

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.figure import CannotMeasure, Figure, Subject, once, series  # noqa: E402
from benchmarks.run import interleave, table  # noqa: E402
from benchmarks.verdict import met, row  # noqa: E402

TARGET = {"stat": "median", "at_most": 50, "of_peer_at_most": 0.25}
PEER = Subject("torchx run", lambda: 0.0, "torchx", "1.0")
FIGURE = Figure("plan", "ms", Subject("loom plan", lambda: 0.0), PEER)


def judged(ours: list[float], peer: list[float], target: dict[str, Any] | None = TARGET) -> bool:
    return bool(row("cli", FIGURE, ours, peer, target)["met"])


def test_a_row_has_the_fields_of_the_design_but_machine_and_commit() -> None:
    ours, peer = [10.0] * 9 + [1000.0], [100.0] * 10

    assert row("cli", FIGURE, ours, peer, TARGET) == {
        "area": "cli",
        "name": "plan",
        "ours": 10.0,
        "peer": 100.0,
        "peer_name": "torchx",
        "peer_version": "1.0",
        "peer_command": "torchx run",
        "ratio": 0.1,
        "unit": "ms",
        "target": TARGET,
        "met": True,
        "n": 10,
        "samples": {"ours": ours, "peer": peer},
    }


def test_too_slow_is_not_met() -> None:
    assert not judged([50.1] * 10, [1000.0] * 10)


def test_fast_but_not_fast_enough_beside_the_peer_is_not_met() -> None:
    assert not judged([26.0] * 10, [100.0] * 10)


def test_nine_samples_of_either_side_are_not_enough() -> None:
    assert not judged([10.0] * 9, [100.0] * 10)
    assert not judged([10.0] * 10, [100.0] * 9)


def test_a_target_may_ask_for_more_samples() -> None:
    slowest = {"stat": "max", "at_most": 50, "samples": 50}
    alone = Figure("wait", "ms", Subject("wait", lambda: 0.0))

    assert not row("cli", alone, [1.0] * 49, [], slowest)["met"]
    assert row("cli", alone, [1.0] * 50, [], slowest)["met"]


def test_a_peer_that_could_not_run_is_not_met() -> None:
    assert not judged([10.0] * 10, [])


def test_a_figure_without_a_target_is_not_met() -> None:
    assert not judged([10.0] * 10, [100.0] * 10, None)
    assert not judged([10.0] * 10, [100.0] * 10, {"stat": "median"})


def test_a_target_on_the_slowest_counts_the_slowest() -> None:
    target = {"stat": "max", "at_most": 50}
    alone = Figure("wait", "ms", Subject("wait", lambda: 0.0))

    assert row("cli", alone, [1.0] * 9 + [49.0], [], target)["met"]
    assert not row("cli", alone, [1.0] * 9 + [51.0], [], target)["met"]


def test_a_p99_takes_two_hundred_samples_and_leaves_out_the_slowest_hundredth() -> None:
    target = {"stat": "p99", "at_most": 50}
    alone = Figure("knob", "ms", Subject("set", lambda: 0.0))

    assert not row("control", alone, [1.0] * 199, [], target)["met"]
    assert row("control", alone, [1.0] * 198 + [99.0] * 2, [], target)["met"]
    assert not row("control", alone, [1.0] * 197 + [99.0] * 3, [], target)["met"]


def test_what_is_only_reported_is_neither_met_nor_missed_unless_it_was_not_measured() -> None:
    target = {"stat": "median", "reported": True}
    alone = Figure("knob-8", "ms", Subject("set", lambda: 0.0))

    assert row("control", alone, [1.0], [], target)["met"] is None
    assert row("control", alone, [], [], target)["met"] is False


@pytest.mark.parametrize(("ours", "ratio"), [(None, None), (10.0, None)])
def test_what_is_missing_never_counts(ours: float | None, ratio: float | None) -> None:
    assert not met(ours, ratio, 10, TARGET)


def test_subjects_take_turns_and_the_first_round_is_not_counted() -> None:
    turns: list[str] = []
    first = Subject("a", lambda: float(turns.append("a") or len(turns)))
    second = Subject("b", lambda: float(turns.append("b") or len(turns)))

    samples = interleave([Figure("x", "ms", first, second), Figure("y", "ms", first)], 2)

    assert turns == ["a", "b"] * 3
    assert samples == {first: [3.0, 5.0], second: [4.0, 6.0]}


def test_what_takes_long_is_sampled_less_often_and_all_along() -> None:
    turns: list[str] = []
    fast = Subject("a", lambda: float(turns.append("a") or 1))
    slow = Subject("b", lambda: float(turns.append("b") or 2), most=2)

    samples = interleave([Figure("x", "ms", fast, slow)], 6)

    assert "".join(turns) == "ab" + "aaab" + "aaab"
    assert samples == {fast: [1.0] * 6, slow: [2.0] * 2}


def test_a_subject_that_fails_midway_keeps_no_samples() -> None:
    calls: list[int] = []

    def fail_late() -> float:
        calls.append(1)
        if len(calls) == 3:
            raise CannotMeasure("gone")
        return 1.0

    subject = Subject("a", fail_late)

    assert interleave([Figure("x", "ms", subject)], 12) == {subject: []}


def test_samples_of_one_run_follow_the_rounds_and_a_run_that_fails_is_not_repeated() -> None:
    tries: list[str] = []

    @once
    def fail() -> list[float]:
        tries.append("once")
        raise CannotMeasure("gone")

    good = series("b", lambda: [1.0, 2.0])
    bad, worse = series("c", fail), series("d", fail)
    figures = [Figure(subject.command, "ms", subject) for subject in (good, bad, worse)]

    assert interleave(figures, 5) == {good: [1.0, 2.0], bad: [], worse: []}
    assert tries == ["once"]


def test_the_table_shows_what_was_missed() -> None:
    shown = table([row("cli", FIGURE, [60.0] * 10, [], TARGET)])

    words = shown.splitlines()[1].split()
    assert " ".join(words) == "plan 60.0 - - <=50 ratio <=0.25 NO"


def test_a_floor_is_met_from_above() -> None:
    floor = {"stat": "median", "at_least": 50}

    assert met(50.0, None, 10, floor) is True
    assert met(49.9, None, 10, floor) is False
