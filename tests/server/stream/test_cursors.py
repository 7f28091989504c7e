"""Cursors say the same to every server, and hostile ones are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torchloom.server.stream.cursors import ORIGIN, BadStreamCursor, Position, parse

numbers = some.none() | some.integers(0, 2**63 - 1)
logs = some.none() | some.dictionaries(
    some.text(max_size=30), some.integers(0, 2**63 - 1), max_size=5
)


@given(some.builds(Position, numbers, numbers, numbers, some.integers(0, 10**9 - 1), logs))
def test_a_cursor_means_what_it_was_made_of(position: Position) -> None:
    assert parse(str(position)) == position


def test_the_start_is_before_everything() -> None:
    assert parse("start") == ORIGIN


@given(some.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(BadStreamCursor):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "1.2.3.",
        "-1.2.3",
        "1.2.99999999999999999999",
        "1.2.3.!!",
        "1.2.3.AAAA",
        "1.2.3.eyJhIjotMX0",
        "1.2.3.WzFd",
        "1.2.3." + "W1tb" * 9000,
        "..-",
        " 1.2.3",
        "1.2.3\n",
    ],
)
def test_what_no_server_gave_is_no_cursor(text: str) -> None:
    with pytest.raises(BadStreamCursor):
        parse(text)
