"""A sheet of dots made of braille letters, eight a cell, each cell in the colour drawn last."""

from collections.abc import Callable

WIDE, TALL = 2, 4  # dots of a cell
_BLANK = 0x2800
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column
Paint = Callable[[str, int], str]  # text and the number of its colour


def unpainted(text: str, colour: int) -> str:
    """Return text as it is, for pipes and for people who want no colours."""
    return text


class Canvas:
    """Dots by column and row, counted from the lower left."""

    def __init__(self, columns: int, rows: int) -> None:
        self.width, self.height = columns * WIDE, rows * TALL
        self._cells = [[0] * columns for _ in range(rows)]
        self._colours = [[0] * columns for _ in range(rows)]

    def dot(self, x: int, y: int, colour: int = 0) -> None:
        """Set one dot; what is off the sheet is not seen."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            return
        down = self.height - 1 - y
        row, column = down // TALL, x // WIDE
        self._cells[row][column] |= _BITS[down % TALL][x % WIDE]
        self._colours[row][column] = colour

    def line(self, begin: tuple[int, int], end: tuple[int, int], colour: int = 0) -> None:
        """Set the dots from one to another."""
        (x, y), (across, up) = begin, (end[0] - begin[0], end[1] - begin[1])
        count = max(abs(across), abs(up), 1)
        for i in range(count + 1):
            self.dot(x + round(across * i / count), y + round(up * i / count), colour)

    def lines(self, paint: Paint = unpainted) -> list[str]:
        """Return the sheet as text, top first; spaces where nothing is drawn."""
        return [
            _painted(cells, colours, paint)
            for cells, colours in zip(self._cells, self._colours, strict=True)
        ]


def _painted(cells: list[int], colours: list[int], paint: Paint) -> str:
    """Return a row, each stretch of one colour painted at once."""
    parts: list[str] = []
    begin = 0
    for column in range(1, len(cells) + 1):
        is_end = column == len(cells)
        if is_end or _look(cells, colours, column) != _look(cells, colours, begin):
            text = "".join(chr(_BLANK + bits) if bits else " " for bits in cells[begin:column])
            parts.append(paint(text, colours[begin]) if text.strip() else text)
            begin = column
    return "".join(parts)


def _look(cells: list[int], colours: list[int], column: int) -> int | None:
    return colours[column] if cells[column] else None
