"""Output of the verbs: messages, tables that fit the terminal, JSON, ages."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from torchloom import settings
from torchloom.settings import environment

GAP = 2  # columns between two cells
# Colours but none that hides text (8, which may also end 38;5;8), and the ends of lines.
_HARMLESS = re.compile(r"(\x1b\[(?![0-9;]*(?<!8;5;)(?<=[\[;])0*8[;m])[0-9;]*m|\r\n)")
_TEXT, _LEAST = 12, 4  # least width of the last column before others shrink, and of any column


def say(text: str, end: str = "\n") -> None:
    """Print a message on stderr; if stderr has no reader, drop it."""
    try:
        print(f"loom: {text}{end}", end="", file=sys.stderr, flush=True)
    except OSError:
        mute(2)


def echo(text: str = "", err: bool = False) -> None:
    """Print a line and flush; used instead of click's `echo`, whose import takes long."""
    print(
        text if text.isascii() else fitting(text),
        file=sys.stderr if err else sys.stdout,
        flush=True,
    )


def is_attended() -> bool:
    """Tell whether a person can read a question and answer it: stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str, otherwise: str) -> None:
    """Ask for confirmation on the terminal; raise `Failure(otherwise)` on a no."""
    import click

    from torchloom.errors import Failure

    if not click.confirm(question, err=True):
        raise Failure(otherwise)


def mute(fd: int) -> None:
    """Send what is still to be written at exit to /dev/null: its reader has closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def echo_json(value: Any) -> None:
    """Print one value as JSON; lists are bare arrays."""
    import json

    echo(json.dumps(value, indent=2))


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    paints: Mapping[str, Callable[[str], str]] | None = None,
) -> str:
    """Return rows in columns; on a terminal long cells are shortened until all columns fit.

    A pipe gets whole cells. `paints` colours the cells of some columns, on a terminal only.
    """
    lines = [tuple(map(printable, row)) for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    room = _room()
    if room is None:
        return "\n".join(_line(cells, widths, {}) for cells in lines)
    painted = {n: paints[head] for n, head in enumerate(heads) if paints and head in paints}
    widths = narrowed(widths, room)
    first, *others = ([shrunk(*cell) for cell in zip(line, widths, strict=True)] for line in lines)
    shown = [_line(first, widths, {}), *(_line(line, widths, painted) for line in others)]
    return fitting("\n".join(shown))


def _line(
    cells: Sequence[str], widths: Sequence[int], paints: Mapping[int, Callable[[str], str]]
) -> str:
    texts = [
        (paints[n](cell) if n in paints else cell) + " " * (width - len(cell))
        for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return (" " * GAP).join(texts).rstrip()


def narrowed(widths: Sequence[int], room: int) -> list[int]:
    """Return column widths that fit into `room`.

    The last column, which is text, shrinks first; then the widest, so that one long name does not
    shrink the other columns.
    """
    fit = list(widths)
    over = sum(fit) + GAP * (len(fit) - 1) - room
    given = max(0, min(over, fit[-1] - _TEXT))
    fit[-1] -= given
    for _ in range(over - given):
        widest = max(range(len(fit)), key=lambda n: (fit[n], n))
        if fit[widest] > _LEAST:
            fit[widest] -= 1
    return fit


def shrunk(cell: str, width: int) -> str:
    """Return a cell that fits: a text loses its end, a name its middle, since names end apart."""
    if len(cell) <= width:
        return cell
    kept = max(0, width - 1)
    begin = kept if " " in cell else (kept + 1) // 2
    return f"{cell[:begin]}…{cell[len(cell) - (kept - begin) :]}"


def clip(line: str) -> str:
    """Return a line that fits the terminal; without one, the line as it is."""
    room = _room()
    if room is None or len(line) <= room:
        return line
    return fitting(f"{line[: room - 1]}…")


def _room() -> int | None:
    """Return the width of the terminal on stdout; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def fitting(text: str) -> str:
    """Return text in characters that stdout and the locale can show; drawings become ASCII in C."""
    return text if shows_unicode() else in_ascii(text)


def shows_unicode() -> bool:
    """Tell whether stdout and the locale are UTF-8."""
    name = settings.locale_name()
    encodings = (getattr(sys.stdout, "encoding", None) or "", name or "utf-8")
    return all("utf8" in one.lower().replace("-", "") for one in encodings)


def in_ascii(text: str) -> str:
    """Return text with each drawing character (bars, boxes, braille) replaced by an ASCII one."""
    return text.translate(_ascii_drawings())


@cache
def _ascii_drawings() -> dict[int, str]:
    boxes = dict.fromkeys(range(9472, 9600), "+")
    boxes |= dict.fromkeys(map(ord, "─━┄┅┈┉╌╍═╴╶╸╺╼╾"), "-")
    boxes |= dict.fromkeys(map(ord, "│┃┆┇┊┋╎╏║╵╷╹╻╽╿"), "|")
    blocks = dict.fromkeys(range(9600, 9632), "#")
    blocks |= {ord(bar): plain for bar, plain in zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)}
    others = {ord(one): plain for one, plain in zip("…·•●○→←↑↓▶◀▲▼", "~-**o><^v><^v", strict=True)}
    return boxes | blocks | others | {0x2800 + dots: _dots(dots) for dots in range(256)}


def _dots(dots: int) -> str:
    """Return the ASCII character that looks most like a braille pattern."""
    rows = tuple(bool(dots & row) for row in (0x09, 0x12, 0x24, 0xC0))
    if not any(rows):
        return " "
    if sum(rows) > 2:
        return "|"
    if any(rows[:2]) and any(rows[2:]):
        return "-" if rows[1] and rows[2] else ":"
    return "'" if rows[0] else "." if rows[3] else "-"


def printable(text: str) -> str:
    """Return text as one line without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


def visible(text: str) -> str:
    """Return text in which every control character is written as an escape."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def for_terminal(text: str) -> str:
    """Return text for a terminal: newlines and colours stay, other controls are escaped."""
    if text.isprintable():
        return text
    parts = _HARMLESS.split(text)  # every second one is harmless
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(parts))


class Terminal(io.TextIOWrapper):
    """Standard output or error on a terminal; escapes every control sequence but colours."""

    def write(self, text: str) -> int:
        super().write(for_terminal(text))
        return len(text)

    def write_as_is(self, text: str) -> None:
        """Write text with its control sequences."""
        super().write(text)


def guard_terminals() -> None:
    """Replace `sys.stdout` and `sys.stderr`, where they are terminals, with `Terminal`."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty() and stream.fileno() == fd:
            stream.flush()
            bytes_ = open(fd, "wb", closefd=False)  # noqa: SIM115
            guarded = Terminal(bytes_, stream.encoding, "replace", line_buffering=True)
            setattr(sys, name, guarded)


def write_as_is(text: str, err: bool = False) -> None:
    """Write text with its control sequences, such as the output of `logs --raw`."""
    stream = sys.stderr if err else sys.stdout
    getattr(stream, "write_as_is", stream.write)(text)
    stream.flush()


def rewrite_line(text: str) -> None:
    """Replace the current line of the terminal on stderr."""
    write_as_is(f"\r\033[K{printable(text)}", err=True)


def one_line(message: str, longest: int) -> str:
    """Return a message of several lines as one line without control characters."""
    flat = re.sub(r":\s*\n\s*", ": ", message.strip())
    flat = printable(re.sub(r"\s*\n\s*", "; ", flat))
    return flat if len(flat) <= longest else f"{flat[:longest]}..."


def paint(text: str, colour: str | None) -> str:
    """Return text in a colour; click drops the colour if the output is not a terminal."""
    if environment().get("NO_COLOR"):
        return text
    import click

    return click.style(text, fg=colour)


def age(since: str | None) -> str:
    """Return the time since an instant, such as 3m10s."""
    if since is None:
        return "-"
    return duration((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())


def duration(seconds: float) -> str:
    """Return seconds in short form: 42s, 3m10s, 2h05m, 3d4h."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
