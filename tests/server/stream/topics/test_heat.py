"""Ranks over time: which stretch a number falls into, and how many there are."""

import math

import pytest

from torchloom.server.stream.payloads import StreamPayload
from torchloom.server.stream.topics.metrics import Heat, cells_of, slots_of

NAME = "loom/step_seconds"


def told(rank: int, time: float, **values: float) -> StreamPayload:
    body = {"step": 1, "rank": rank, "role": "t", "seq": 1, **values}
    return StreamPayload("j", "metric", rank, time, body, {"arrived": 1})


@pytest.mark.parametrize(
    ("span", "columns", "ranks", "expected"),
    [
        (600, 300, 2, (300, 2)),
        (600, 300, 1000, (100, 6)),  # a page takes so many cells at once
        (600, 5000, 2, (600, 1)),  # nobody tells more than once a second
        (86_400, 300, 0, (300, 288)),
    ],
)
def test_all_stretches_are_whole_seconds_and_together_the_while(
    span: int, columns: int, ranks: int, expected: tuple[int, int]
) -> None:
    assert slots_of(span, columns, ranks) == expected


def test_lines_end_with_the_newest_word_of_any_rank_and_have_the_greatest_of_each_stretch() -> None:
    heat = Heat(NAME, columns=4, width=2)
    for time, value in ((100.0, 1.0), (101.9, 3.0), (104.0, 2.0), (105.0, math.nan)):
        heat.take(1, "t", time, value)
    heat.take(0, "t", 106.5, 9.0)

    assert heat.shape(left_out=0) == {
        "name": NAME,
        "columns": 4,
        "width": 2,
        "start": 50,
        "left_out": 0,
        "lines": [
            {"rank": 0, "role": "t", "values": [None, None, None, 9.0]},
            {"rank": 1, "role": "t", "values": [3.0, None, 2.0, None]},
        ],
    }


def test_messages_become_cells_and_what_they_tell_of_something_else_does_not() -> None:
    drafts = [
        told(0, 10.1, **{NAME: 0.12345}),
        told(0, 11.9, **{NAME: 0.1}),
        told(1, 12.0, **{NAME: math.inf}),
        told(1, 12.5, loss=3.0),
        told(2, 14.0, **{NAME: 5.0, "loss": 1.0}),
    ]

    assert cells_of(drafts, NAME, width=2) == [(0, "t", 5, 0.123), (2, "t", 7, 5.0)]


def test_a_metric_that_is_named_as_a_part_of_every_message_is_not_taken_for_it() -> None:
    drafts = [told(0, 10.0, **{"metric.seq": 4.0})]

    assert cells_of(drafts, "seq", width=1) == [(0, "t", 10, 4.0)]
