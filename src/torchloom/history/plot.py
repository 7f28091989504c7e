"""Curves for people: in a terminal as dots, in a file as a picture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from torchloom.errors import Failure, MissingExtra, UserError
from torchloom.history.series import MetricSeries, thinned

WIDE, TALL = 2, 4  # dots of a cell
_BLANK = 0x2800
_MARK = "·"
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column
ENDINGS = (".png", ".svg", ".pdf")
_LEAST_ROWS = 7  # of a panel, its title and axis included
_SAMPLE, _GAP = "⠒⠒", "   "  # of a line in the legend, and what is between two
_NAMED = 3  # generations in a legend; of more there is the number
_FAR, _NEAR = 1e300, 1e-300  # beyond these, differences overflow and shares are zero
_FRAME = 4  # rows of a panel that are no curve: title, axis, its numbers, legend


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most so many round numbers from `low` to `high`, evenly apart."""
    if not high > low or most < 2:
        return [low]
    if high - low < max(1e-9 * max(abs(low), abs(high)), _NEAR):  # nothing in between can be shown
        return [low, high]
    step = _round_up((high - low) / (most - 1))
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while len(found) < most and (first + len(found)) * step <= high + step * 1e-9:
        found.append((first + len(found)) * step)
    return found if len(found) > 1 else [low, high]


def short(value: float) -> str:
    """Return a number in few letters: 0.05, 12, 1.5k, 3e-05."""
    size = abs(value)
    if size < 1e-15:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return f"{value:.3g}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"


def clock(seconds: float) -> str:
    """Return seconds in a short form: 42s, 3m10s, 2h05m."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    if minutes:
        return f"{minutes}m{rest:02}s"
    return f"{seconds:.3g}s"


def _round_up(step: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * times for times in (1, 2, 5, 10) if scale * times >= step * (1 - 1e-9))


Paint = Callable[[str, int, bool], str]  # text, the number of its colour, whether it is dim


def unpainted(text: str, colour: int, dim: bool = False) -> str:
    """Return text as it is, for pipes and for people who want no colours."""
    return text


class Canvas:
    """Dots by column and row, counted from the lower left."""

    def __init__(self, columns: int, rows: int) -> None:
        self.width, self.height = columns * WIDE, rows * TALL
        self._cells = [[0] * columns for _ in range(rows)]
        self._colours = [[0] * columns for _ in range(rows)]
        self._marks: dict[tuple[int, int], int] = {}  # colours by row and column

    def dot(self, x: int, y: int, colour: int = 0) -> None:
        """Set one dot; what is off the sheet is not seen."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            return
        down = self.height - 1 - y
        row, column = down // TALL, x // WIDE
        self._cells[row][column] |= _BITS[down % TALL][x % WIDE]
        self._colours[row][column] = colour

    def mark(self, x: int, y: int, colour: int = 0) -> None:
        """Set a dim point of a cell's size; it is seen where there is no dot."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self._marks[(self.height - 1 - y) // TALL, x // WIDE] = colour

    def line(self, begin: tuple[int, int], end: tuple[int, int], colour: int = 0) -> None:
        """Set the dots from one to another."""
        (x, y), (across, up) = begin, (end[0] - begin[0], end[1] - begin[1])
        count = max(abs(across), abs(up), 1)
        for i in range(count + 1):
            self.dot(x + round(across * i / count), y + round(up * i / count), colour)

    def lines(self, paint: Paint = unpainted) -> list[str]:
        """Return the sheet as text, top first; spaces where nothing is drawn."""
        return [self._line(row, paint) for row in range(len(self._cells))]

    def _line(self, row: int, paint: Paint) -> str:
        """Return a row, each stretch of one look painted at once."""
        looks = [self._look(row, column) for column in range(len(self._cells[row]))]
        parts: list[str] = []
        for look, run in groupby(enumerate(looks), key=lambda one: one[1]):
            cells = [self._cells[row][column] for column, _ in run]
            if look is None:
                parts.append(" " * len(cells))
                continue
            text = "".join(chr(_BLANK + bits) if bits else _MARK for bits in cells)
            parts.append(paint(text, *look))
        return "".join(parts)

    def _look(self, row: int, column: int) -> tuple[int, bool] | None:
        """Return the colour of a cell, and whether it is dim; nothing where it is empty."""
        if self._cells[row][column]:
            return self._colours[row][column], False
        colour = self._marks.get((row, column))
        return None if colour is None else (colour, True)


By = Literal["step", "time"]


class NoMatplotlib(MissingExtra):
    """Pictures need a library that is not there."""

    code = "no_matplotlib"

    def __init__(self) -> None:
        otherwise = "leave out --out for a plot in the terminal"
        super().__init__("a picture", "matplotlib", "plots", otherwise)


class BadPicture(UserError):
    """A file with this ending cannot be drawn."""

    code = "bad_picture"

    def __init__(self, path: Path) -> None:
        super().__init__(f"cannot draw {str(path)!r}; its name must end in {', '.join(ENDINGS)}")


@dataclass(frozen=True, slots=True)
class Panel:
    """The curves of one metric, to be drawn over each other."""

    title: str
    curves: tuple[MetricSeries, ...]


def panels(curves: Sequence[MetricSeries]) -> list[Panel]:
    """Return a panel a metric, in the order in which they come."""
    names = dict.fromkeys(curve.name for curve in curves)
    return [Panel(name, tuple(one for one in curves if one.name == name)) for name in names]


def in_text(
    shown: Sequence[Panel], columns: int, rows: int, by: By = "step", paint: Paint = unpainted
) -> list[str]:
    """Return panels one below the other, each line at most so wide, together about so high."""
    tall = max(_LEAST_ROWS, rows // max(1, len(shown)))
    return [line for panel in shown for line in _panel(panel, columns, tall, by, paint)]


def to_file(shown: Sequence[Panel], path: Path, by: By = "step", title: str = "") -> None:
    """Draw panels into a picture; its kind is that of the name's ending."""
    if path.suffix.lower() not in ENDINGS:
        raise BadPicture(path)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlib from error
    figure = Figure(figsize=(8, 1 + 3 * len(shown)), layout="constrained")
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        for curve in panel.curves:
            (line,) = axes.plot(_xs(curve, by), curve.values, label=_label(curve), linewidth=1.2)
            look = {"color": line.get_color(), "linestyle": "--", "linewidth": 1, "alpha": 0.45}
            for number, older in enumerate(curve.replaced):
                label = "" if number else f"{_label(curve)}, replaced: {_generations(curve)}"
                axes.plot(_xs(older, by, curve), older.values, label=label or None, **look)
        axes.set_ylabel(panel.title)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(frameon=False)
    axes.set_xlabel("step" if by == "step" else "seconds")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}") from error


def _panel(panel: Panel, columns: int, rows: int, by: By, paint: Paint) -> list[str]:
    dots = [_dots(curve, by, columns, curve) for curve in panel.curves]
    marks = [
        [dot for older in curve.replaced for dot in _dots(older, by, columns, curve)]
        for curve in panel.curves
    ]
    finite = [(x, y) for curve in (*dots, *marks) for x, y in curve if _has_place(y)]
    if not finite:
        return [panel.title, "  no point is a number", ""]
    low, high = _range([y for _, y in finite])
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    names = {_row(y, low, high, rows - _FRAME): short(y) for y in ticks(low, high, rows // 3 + 1)}
    margin = max(map(len, names.values()))
    canvas = Canvas(columns - margin - 2, rows - _FRAME)
    for colour, (curve, older) in enumerate(zip(dots, marks, strict=True)):
        _draw(canvas, curve, (left, right), (low, high), colour)
        for dot in (dot for dot in older if _has_place(dot[1])):
            canvas.mark(*_place(canvas, dot, (left, right), (low, high)), colour)
    body = [
        f"{names.get(row, ''):>{margin}} {'┤' if row in names else '│'}{line}".rstrip()
        for row, line in enumerate(canvas.lines(paint))
    ]
    width = columns - margin - 2
    axis = [" " * (margin + 1) + line for line in _axis(left, right, width, by)]
    title = f"{'':>{margin}} {panel.title} by {by}"[:columns]
    return [title, *body, *axis, _legend(panel, margin, columns, paint)]


def _dots(
    curve: MetricSeries, by: By, columns: int, beside: MetricSeries
) -> list[tuple[float, float]]:
    """Return where a curve is, in about as many points as there are dots across."""
    thin = thinned(curve, 4 * columns)
    return list(zip(_xs(thin, by, beside), thin.values, strict=True))


def _draw(
    canvas: Canvas,
    curve: Sequence[tuple[float, float]],
    across: tuple[float, float],
    up: tuple[float, float],
    colour: int,
) -> None:
    """Draw a curve; where it is no number there is a gap."""
    before: tuple[int, int] | None = None
    for x, y in curve:
        if not _has_place(y):
            before = None
            continue
        dot = _place(canvas, (x, y), across, up)
        canvas.line(before or dot, dot, colour)
        before = dot


def _place(
    canvas: Canvas, point: tuple[float, float], across: tuple[float, float], up: tuple[float, float]
) -> tuple[int, int]:
    return _scaled(point[0], across, canvas.width), _scaled(point[1], up, canvas.height)


def _scaled(value: float, limits: tuple[float, float], dots: int) -> int:
    low, high = limits
    return round((value - low) / (high - low) * (dots - 1)) if high > low else dots // 2


def _has_place(value: float) -> bool:
    """Tell whether a value can be drawn: the width of an axis must be a number, too."""
    return abs(value) < _FAR


def _row(value: float, low: float, high: float, rows: int) -> int:
    """Return the row, from the top, in which a value is drawn."""
    return (rows * 4 - 1 - _scaled(value, (low, high), rows * 4)) // 4


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return what an axis shows: all values, and where there is only one a bit beside it."""
    low, high = min(values), max(values)
    if low < high:
        return low, high
    return low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1


def _axis(left: float, right: float, width: int, by: By) -> list[str]:
    """Return the axis at the bottom, and as many of its numbers as do not touch."""
    write: Callable[[float], str] = short if by == "step" else clock
    ruler, words = list("└" + "─" * width), [" "] * (width + 1)
    for value in ticks(left, right, max(2, width // 9)):
        place, text = 1 + _scaled(value, (left, right), width), write(value)
        ruler[place] = "┬"
        begin = max(0, min(place - len(text) // 2, width + 1 - len(text)))
        end = begin + len(text)
        if not "".join(words[max(0, begin - 1) : end + 1]).strip():
            words[begin:end] = text
    return ["".join(ruler), "".join(words).rstrip()]


def _legend(panel: Panel, margin: int, columns: int, paint: Paint) -> str:
    """Return which colour is which curve, and where it ended; those that do not fit are dots."""
    line, used = " " * (margin + 2), margin + 2
    for colour, curve in enumerate(panel.curves):
        entries = [(_SAMPLE, f" {_label(curve)} {short(curve.values[-1])}", False)]
        if curve.replaced:
            entries.append((_MARK * 2, f" replaced: {_generations(curve)}", True))
        for sample, words, dim in entries:
            if used + len(sample + words) + len(_GAP) >= columns:
                return f"{line}…"
            line += paint(sample, colour, dim) + words + _GAP
            used += len(sample + words + _GAP)
    return line.rstrip()


def _generations(curve: MetricSeries) -> str:
    """Return the generations that were replaced: `generation 1`, `generations 1, 2`."""
    numbers = [str(one.generation) for one in curve.replaced]
    if len(numbers) > _NAMED:
        return f"{len(numbers)} generations"
    return f"generation{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _label(curve: MetricSeries) -> str:
    return curve.run or f"rank {curve.rank}"


def _xs(curve: MetricSeries, by: By, beside: MetricSeries | None = None) -> Sequence[float]:
    """Return where points are across; seconds count from the start of the curve beside them."""
    return curve.steps if by == "step" else curve.seconds((beside or curve).start())
