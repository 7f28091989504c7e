"""A drawing as SVG text: boxes, words and arrows, readable on light and on dark pages.

The same calls give the same bytes. Colours are classes, whose values follow `prefers-color-scheme`
in the picture's own style; a background of its own keeps it readable where the page's colours are
others. Widths of words are estimated: no font is measured.
"""

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2230",
    "soft": "#566074",
    "line": "#76819a",
    "edge": "#c6cddb",
    "zone": "#f5f7fb",
    "plain": "#ffffff",
    "blue": "#dfe9ff",
    "green": "#dcf3e3",
    "red": "#fde1de",
    "amber": "#fdefcf",
}
DARK = {
    "paper": "#12161e",
    "ink": "#e6eaf2",
    "soft": "#a3adbf",
    "line": "#8590a6",
    "edge": "#3b4558",
    "zone": "#191f2a",
    "plain": "#222a38",
    "blue": "#1d3059",
    "green": "#17402a",
    "red": "#522321",
    "amber": "#4a3813",
}
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_WIDE = 0.56  # of a letter, in parts of its size


class Drawing:
    """Parts in the order in which they are drawn."""

    def __init__(self, name: str, width: float, height: float, title: str, text: str) -> None:
        self._name, self._size = name, (width, height)
        self._title, self._text = title, text
        self._parts: list[str] = []

    def zone(self, x: float, y: float, width: float, height: float) -> None:
        """Draw what other boxes lie in."""
        self._rect(x, y, width, height, "zone", 10)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        title: str,
        lines: Sequence[str] = (),
        colour: str = "plain",
    ) -> None:
        """Draw a box with a title and lines below it, in its middle."""
        self._rect(x, y, width, height, f"box {colour}", 7)
        middle = y + height / 2 - 8 * len(lines)
        self.words(x + width / 2, middle + 5, title, "strong")
        for number, line in enumerate(lines):
            self.words(x + width / 2, middle + 24 + 17 * number, line, "small")

    def words(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" class="{style}">'
            f"{escape(text, quote=False)}</text>"
        )

    def label(self, x: float, y: float, text: str, style: str = "small") -> None:
        """Write words on a piece of the background, so that lines below them do not disturb."""
        width = width_of(text) + 8
        self._parts.append(
            f'<rect x="{_n(x - width / 2)}" y="{_n(y - 13)}" width="{_n(width)}" height="18"'
            f' rx="4" class="paper"/>'
        )
        self.words(x, y, text, style)

    def line(self, points: Sequence[Point], ends: str = "->", style: str = "") -> None:
        """Draw a line through points; `ends` is `-`, `->` or `<->`."""
        path = "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        heads = ' marker-end="url(#head)"' if ends.endswith(">") else ""
        heads += ' marker-start="url(#head)"' if ends.startswith("<") else ""
        self._parts.append(f'<path d="{path}" class="line {style}"{heads}/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._rect(x, y, width, height, f"bar {colour}", 3)

    def number(self, x: float, y: float, number: int) -> None:
        """Draw a number in a circle."""
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="9" class="number"/>')
        self.words(x, y + 4, str(number), "inner")

    def svg(self) -> str:
        """Return the whole picture."""
        width, height = map(_n, self._size)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            f' aria-labelledby="{self._name}-title {self._name}-desc">'
        )
        about = (
            f'<title id="{self._name}-title">{escape(self._title, quote=False)}</title>',
            f'<desc id="{self._name}-desc">{escape(self._text, quote=False)}</desc>',
        )
        paper = f'<rect width="{width}" height="{height}" rx="12" class="paper"/>'
        lines = (head, *about, style(), _HEAD, paper, *self._parts, "</svg>")
        return "\n".join(lines) + "\n"

    def _rect(
        self, x: float, y: float, width: float, height: float, style: str, radius: float
    ) -> None:
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            f' rx="{_n(radius)}" class="{style}"/>'
        )


def width_of(text: str, size: float = 13.5) -> float:
    """Estimate how wide words are."""
    return len(text) * size * _WIDE


def style() -> str:
    """Return the rules of all pictures, once for each colour scheme."""

    def colours(names: dict[str, str]) -> str:
        return "svg{" + "".join(f"--{name}:{value};" for name, value in names.items()) + "}"

    fills = ("paper", "zone", "plain", "blue", "green", "red", "amber")
    rules = [
        colours(LIGHT),
        f"@media (prefers-color-scheme:dark){{{colours(DARK)}}}",
        f"text{{font:15.5px {FONT};fill:var(--ink)}}",
        ".small{font-size:13.5px;fill:var(--soft)}.strong{font-weight:600}",
        ".small.strong{fill:var(--ink)}",
        *(f".{name}{{fill:var(--{name})}}" for name in fills),
        ".zone{stroke:var(--edge)}.box{stroke:var(--line)}.bar{stroke:var(--edge)}",
        ".line{fill:none;stroke:var(--line);stroke-width:1.5}",
        ".dashed{stroke-dasharray:5 4}.thin{stroke-width:1;stroke:var(--edge)}",
        ".number{fill:var(--ink)}.inner{font-size:11px;font-weight:600;fill:var(--paper)}",
        "#head path{fill:var(--line)}",
    ]
    return f"<style>{''.join(rules)}</style>"


_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


def _n(value: float) -> str:
    """Return a number without needless digits, so that a picture is the same everywhere."""
    return f"{value:.1f}".rstrip("0").rstrip(".")
