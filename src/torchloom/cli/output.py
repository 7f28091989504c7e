"""What verbs print: tables that fit, JSON in one shape, ages that people read."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from torchloom.settings import environment


def say(text: str) -> None:
    """Say something beside the output; where nobody is there to be told, nothing is said."""
    try:
        print(f"loom: {text}", file=sys.stderr, flush=True)
    except OSError:
        mute(2)


def echo(text: str = "", err: bool = False) -> None:
    """Print a line at once; the library of the command line takes longer to import than this."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def is_attended() -> bool:
    """Tell whether a person reads what is asked and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str, otherwise: str) -> None:
    """Ask a person on the terminal; a no ends the command, which has changed nothing."""
    import click

    from torchloom.errors import Failure

    if not click.confirm(question, err=True):
        raise Failure(otherwise)


def mute(fd: int) -> None:
    """Let what is still to be written at exit go nowhere: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def echo_json(value: Any) -> None:
    """Print one value; lists are bare arrays."""
    import json

    echo(json.dumps(value, indent=2))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns, each line cut where the terminal ends; a pipe gets all of it."""
    lines = [tuple(heads), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join(clip(line) for line in shown)


def clip(line: str) -> str:
    """Return a line that fits the terminal; without one, the line as it is."""
    if not sys.stdout.isatty():
        return line
    import shutil

    room = shutil.get_terminal_size((80, 24)).columns
    return line if len(line) <= room else f"{line[: room - 1]}…"


def printable(text: str) -> str:
    """Return text without what could move the cursor or forge a line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def one_line(message: str, longest: int) -> str:
    """Return a message of several lines as one, without what could move the cursor."""
    flat = re.sub(r":\s*\n\s*", ": ", message.strip())
    flat = printable(re.sub(r"\s*\n\s*", "; ", flat))
    return flat if len(flat) <= longest else f"{flat[:longest]}..."


def paint(text: str, colour: str | None) -> str:
    """Return text in a colour; click drops it where there is no terminal."""
    if environment().get("NO_COLOR"):
        return text
    import click

    return click.style(text, fg=colour)


def age(since: str | None) -> str:
    """Return how long ago an instant was."""
    if since is None:
        return "-"
    return duration((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())


def duration(seconds: float) -> str:
    """Return seconds as people say them: 42s, 3m10s, 2h05m, 3d4h."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
