"""Knobs of a job as its ranks have told of them."""

from torchloom.weaver.knobs import knobs_of, valued
from torchloom.weaver.store.rows import Rank


def rank(number: int, **values: float) -> Rank:
    knobs = [{"name": name, "value": value} for name, value in values.items()]
    return Rank("job", "trainer", number, 0, f"life-{number}", knobs=knobs)


def test_a_knob_has_its_ranks_and_their_values_where_these_differ() -> None:
    found = knobs_of([rank(0, lr=0.1, clip=1.0), rank(1, lr=0.2, clip=1.0), rank(2, lr=0.1)])

    assert found == {
        "clip": {"name": "clip", "value": 1.0, "ranks": [0, 1]},
        "lr": {"name": "lr", "value": 0.1, "ranks": [0, 1, 2], "values": [0.1, 0.2, 0.1]},
    }


def test_a_change_gives_all_ranks_one_value() -> None:
    knob = {"name": "lr", "value": 0.1, "ranks": [0, 1], "values": [0.1, 0.2]}

    assert valued(knob, {"clip": 2.0}) == knob
    assert valued(knob, {"lr": 0.3}) == {"name": "lr", "value": 0.3, "ranks": [0, 1]}
