"""A run's config is what it began with, and its timeline every change that took place."""

from typing import Any

from torchloom.weaver.runs.summary import config_of, timeline_of
from torchloom.weaver.store.rows import CommandRow, RankProcessRow


def rank(number: int, **knobs: Any) -> RankProcessRow:
    told = [{"name": name, "value": value} for name, value in knobs.items()]
    return RankProcessRow("job-1", "trainer", number, 0, f"life-{number}", knobs=told)


def change(
    number: int, step: int, before: Any, state: str = "applied", **values: Any
) -> CommandRow:
    return CommandRow(
        f"c{number}",
        number,
        "job-1",
        "knob",
        {name: {"value": value, "hold": False} for name, value in values.items()},
        author="ann",
        reason="why",
        asked_at=100.0 + number,
        state=state,
        effective=step,
        before=before,
        after=values if len(values) > 1 else next(iter(values.values())),
        ended_at=101.0 + number,
    )


def test_a_changed_value_is_told_as_it_was_before_the_first_change() -> None:
    ranks = [rank(0, lr=0.3, temperature=0.7), rank(1, lr=0.3, only_here=1)]
    commands = [change(2, 40, 0.2, lr=0.3), change(1, 20, 0.1, lr=0.2)]

    assert config_of(ranks, commands, {"epochs": 2, "lr": 9}) == {
        "epochs": 2,
        "lr": 0.1,
        "only_here": 1,
        "temperature": 0.7,
    }


def test_the_timeline_begins_with_the_config_and_has_each_change_at_its_step() -> None:
    commands = [
        change(3, 40, {"lr": 0.2, "clip": 1.0}, lr=0.3, clip=2.0),
        change(1, 20, 0.1, lr=0.2),
        change(2, 30, 0.1, "aborted", lr=9.0),
        CommandRow("c4", 4, "job-1", "pause", state="applied", effective=50),
    ]

    first, second, third = timeline_of({"lr": 0.1}, commands, 99.0)

    assert first == {
        "step": 0,
        "time": "1970-01-01T00:01:39.000+00:00",
        "values": {"lr": 0.1},
        "author": "",
        "reason": "",
        "command": None,
    }
    assert (second["step"], second["values"], second["command"]) == (20, {"lr": 0.2}, "c1")
    assert (second["author"], second["reason"]) == ("ann", "why")
    assert (third["step"], third["values"]) == (40, {"lr": 0.3, "clip": 2.0})


def test_a_run_without_knobs_has_an_empty_timeline() -> None:
    assert timeline_of(config_of([rank(0)], [], {}), [], None) == []
