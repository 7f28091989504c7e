"""Dots are where they are set; a line of text is painted stretch by stretch."""

from torchloom.history.plot import Canvas


def test_a_dot_is_counted_from_the_lower_left() -> None:
    canvas = Canvas(2, 2)

    canvas.dot(0, 0)
    canvas.dot(3, 7)
    canvas.dot(4, 0)  # off the sheet
    canvas.dot(0, -1)

    assert canvas.lines() == [" ⠈", "⡀ "]


def test_a_line_joins_its_ends_without_a_gap() -> None:
    canvas = Canvas(2, 1)

    canvas.line((0, 0), (3, 3))

    assert canvas.lines() == ["⡠⠊"]


def test_each_stretch_of_a_colour_is_painted_once_and_blanks_are_not() -> None:
    canvas = Canvas(5, 1)
    for column in (0, 1, 3, 4):
        canvas.dot(2 * column, 0, colour=column // 2)

    assert canvas.lines(lambda text, colour, dim: f"<{colour}{text}>") == ["<0⡀⡀> <1⡀><2⡀>"]


def test_a_mark_is_dim_and_seen_where_there_is_no_dot() -> None:
    canvas = Canvas(4, 1)
    canvas.dot(2, 0, colour=1)
    for x in (0, 2, 4, 9):  # the second under a dot, the last off the sheet
        canvas.mark(x, 0, colour=1)

    assert canvas.lines(lambda text, colour, dim: f"<{colour}{dim}{text}>") == [
        "<1True·><1False⡀><1True·> "
    ]
