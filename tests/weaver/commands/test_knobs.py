"""Knobs of a job as its ranks have told of them, and the values they have now."""

import pytest

from torchloom.rules.control.command import Command, CommandEntry, CommandKind, NotAKnob, Status
from torchloom.weaver.commands.driver import wrapped
from torchloom.weaver.commands.rows import InForce, checked, knobs_of
from torchloom.weaver.store.rows import JobRow, PointRow, RankProcessRow

LR = {"name": "lr", "value": 0.1, "type": "float", "low": 0.0, "high": None}


def rank(number: int, **values: float) -> RankProcessRow:
    knobs = [{**LR, "name": name, "value": value} for name, value in values.items()]
    return RankProcessRow("job", "trainer", number, 0, f"life-{number}", knobs=knobs)


def knob(*ranks: RankProcessRow, name: str = "lr") -> dict[str, object]:
    return knobs_of(ranks)[name]


def change(value: object, step: int, name: str = "lr") -> CommandEntry:
    command = Command("c", CommandKind.KNOB, wrapped({name: value}, False))
    return CommandEntry(command, 1, Status.APPLIED, step=step)


def measured(rank: int, step: int, value: float, name: str = "loom/lr") -> PointRow:
    return PointRow(name, rank, step, 0, 0.0, value)


def test_a_knob_has_its_ranks_and_their_values_where_these_differ() -> None:
    found = knobs_of([rank(0, lr=0.1, clip=1.0), rank(1, lr=0.2, clip=1.0), rank(2, lr=0.1)])

    assert found == {
        "clip": {**LR, "name": "clip", "value": 1.0, "ranks": [0, 1]},
        "lr": {**LR, "ranks": [0, 1, 2], "values": [0.1, 0.2, 0.1]},
    }


def test_a_change_gives_all_ranks_one_value() -> None:
    two = knob(rank(0, lr=0.1), rank(1, lr=0.2))

    assert InForce([change(2.0, 5, "clip")], [], 0, 9).of(two) == two
    assert InForce([change(0.3, 5)], [], 0, 9).of(two) == {**LR, "value": 0.3, "ranks": [0, 1]}
    assert InForce([change(0.3, 50)], [], 1, 9).of(two) == two  # its step is still ahead


def test_what_ranks_measured_last_is_newer_than_what_they_registered() -> None:
    two = knob(rank(0, lr=0.1), rank(1, lr=0.1))
    points = [measured(0, 40, 0.05), measured(1, 41, 0.05), measured(0, 40, 7.0, "loss")]

    assert InForce([], points, 0, 41).of(two) == {**LR, "value": 0.05, "ranks": [0, 1]}
    assert InForce([change(0.3, 5)], points, 0, 41).of(two)["value"] == 0.05
    assert InForce([change(0.3, 40)], points, 0, 41).of(two)["value"] == 0.3
    assert InForce([], points[:1], 0, 41).of(two) == two  # of one rank nothing is known
    assert InForce([], points, 3, 41).of(two) == two  # of another generation


def test_a_pair_of_numbers_is_measured_in_parts() -> None:
    betas = {**LR, "name": "betas", "value": [0.9, 0.99], "type": "json"}
    one = knob(RankProcessRow("job", "trainer", 0, 0, "life", knobs=[betas]), name="betas")
    points = [measured(0, 9, 0.85, "loom/betas.0"), measured(0, 9, 0.95, "loom/betas.1")]

    assert InForce([], points, 0, 9).of(one) == {**betas, "value": [0.85, 0.95], "ranks": [0]}


def test_config_that_no_step_reads_is_neither_listed_nor_changed() -> None:
    unread = {**LR, "name": "epochs", "value": None, "is_used": False}
    ranks = [RankProcessRow("job", "trainer", 0, 0, "life", knobs=[LR, unread])]

    assert list(knobs_of(ranks)) == ["lr"]
    with pytest.raises(NotAKnob, match="no step has read"):
        checked(JobRow("job"), ranks, {"epochs": 1})


def test_config_that_one_of_the_training_ranks_has_not_read_is_not_changed() -> None:
    read = {**LR, "name": "temperature", "value": 0.7}
    unread = {**read, "is_used": False}
    ranks = [RankProcessRow("job", "trainer", 0, 0, "a", knobs=[read])]
    newcomer = RankProcessRow("job", "trainer", 1, 0, "b", knobs=[unread])
    judge = RankProcessRow("job", "evaluator", 0, 0, "c", knobs=[unread])

    assert checked(JobRow("job"), [*ranks, judge], {"temperature": 0.5}) == {"temperature": 0.5}
    with pytest.raises(NotAKnob, match="no step has read"):
        checked(JobRow("job"), [*ranks, newcomer], {"temperature": 0.5})
