"""What differs between runs is found under flat names; what is the same is only counted."""

import pytest

from torchloom.history.compare import Difference, differences, flat, shared, winner


def test_nested_values_have_dotted_names_and_lists_are_values() -> None:
    values = {"lr": 0.1, "resources": {"workers": 4, "more": {"x": []}}, "empty": {}}

    assert dict(flat(values)) == {
        "lr": 0.1,
        "resources.workers": 4,
        "resources.more.x": [],
        "empty": {},
    }


def test_only_what_differs_is_told_by_name_with_one_value_a_run() -> None:
    runs = [{"lr": 0.1, "seed": 1, "a": {"b": 1}}, {"lr": 0.2, "seed": 1}, {"lr": 0.1, "seed": 1}]

    assert differences(runs) == [
        Difference("a.b", (1, None, None), (False, True, True)),
        Difference("lr", (0.1, 0.2, 0.1), (False, False, False)),
    ]
    assert shared(runs) == 1


def test_a_value_of_none_is_not_a_missing_one_and_one_is_not_true() -> None:
    runs = [{"elastic": None, "on": True}, {"on": 1}]

    assert [row.name for row in differences(runs)] == ["elastic", "on"]


def test_names_that_are_asked_for_are_told_though_they_are_the_same() -> None:
    assert differences([{"steps": 3}, {"steps": 3}], ["steps", "samples"]) == [
        Difference("steps", (3, 3), (False, False)),
        Difference("samples", (None, None), (True, True)),
    ]


@pytest.mark.parametrize(
    ("values", "lower", "best"),
    [
        ([0.3, 0.2, 0.5], True, 1),
        ([0.3, 0.2, 0.5], False, 2),
        ([0.2, 0.2], True, None),  # nobody is better
        ([0.2, None], True, None),  # nobody to be better than
        (["nan", 0.5, 0.4], True, 2),
        ([], True, None),
    ],
)
def test_the_best_of_the_numbers_wins(values: list[object], lower: bool, best: int | None) -> None:
    assert winner(values, lower) == best
