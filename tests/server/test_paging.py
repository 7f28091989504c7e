"""Cursors come back as they went, and nothing else passes for one."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.server.models.common import cursor_of, place_of, seconds_of
from torchloom.server.problems import ApiProblem

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


@given(st.floats(allow_nan=False, allow_infinity=False), TEXT)
def test_a_cursor_comes_back_as_it_went(made: float, job: str) -> None:
    assert place_of(cursor_of(made, job), float, str) == (made, job)


@given(st.text(max_size=200))
def test_no_text_from_elsewhere_breaks_it(text: str) -> None:
    with contextlib.suppress(ApiProblem):
        assert isinstance(place_of(text, int)[0], int)


@pytest.mark.parametrize(
    "cursor",
    [
        cursor_of("x"),
        cursor_of(1, 2),
        cursor_of(True),
        cursor_of(-1),
        cursor_of(1 << 63),
        cursor_of(1)[:-1] + "!",
        "=",
        "W" * 500,
    ],
)
def test_what_a_column_cannot_hold_is_no_place(cursor: str) -> None:
    with pytest.raises(ApiProblem, match="cursor is not from this list"):
        place_of(cursor, int)


def test_times_are_read_in_both_ways() -> None:
    texts = ("1767225600", "1767225600.5", "2026-01-01T00:00:00Z", "2026-01-01", None)

    assert [seconds_of("since", text) for text in texts] == [
        1767225600.0,
        1767225600.5,
        1767225600.0,
        1767225600.0,
        None,
    ]


@pytest.mark.parametrize("text", ["", "soon", "nan", "1e400", "²", "2026-13-01"])
def test_what_is_no_time_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        seconds_of("until", text)

    assert (caught.value.status_code, caught.value.field) == (422, "until")
