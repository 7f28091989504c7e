"""The position of a reader in what is stored, as opaque text.

It refers to no server's memory: any server of the plane, also a later one, resumes from it.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from torchloom.errors import UserError

START = "start"  # given as a cursor: everything there is
_NUMBERS = re.compile(r"(\d{0,19})\.(\d{0,19})\.(\d{0,19})(?:-(\d{1,9}))?(?:\.([A-Za-z0-9_-]+))?")
_LONGEST = 64_000  # letters of a cursor
_MOST = 2**63 - 1


class BadStreamCursor(UserError):
    """A text that is not a cursor."""

    code = "bad_cursor"
    field = "cursor"
    remedy = f"give a cursor as it came, or `{START}` for everything there is"

    def __init__(self) -> None:
        super().__init__("this is not a cursor")


@dataclass(frozen=True, slots=True)
class Position:
    """How far each source was read; nothing where a source is to be read from now on.

    `happened` and `reported` number events of the weaver and of ranks, `arrived` stored metrics and
    `row` the row within one of them. `logs` has bytes by output.
    """

    happened: int | None = None
    reported: int | None = None
    arrived: int | None = None
    row: int = 0
    logs: Mapping[str, int] | None = None

    def __str__(self) -> str:
        row = f"-{self.row}" if self.row else ""
        numbers = ".".join(map(_text, (self.happened, self.reported, self.arrived)))
        return numbers + row + logs_text(self.logs)


ORIGIN = Position(0, 0, 0, 0, {})


def logs_text(logs: Mapping[str, int] | None) -> str:
    """Return the part of a cursor that is about logs."""
    if logs is None:
        return ""
    text = msgspec.json.encode(logs, order="sorted")  # once a line, of up to hundreds of outputs
    return "." + base64.urlsafe_b64encode(text).decode().rstrip("=")


def parse(text: str) -> Position:
    """Return what a cursor means."""
    if text == START:
        return ORIGIN
    found = _NUMBERS.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise BadStreamCursor
    happened, reported, arrived, row, logs = found.groups()
    return Position(
        _number(happened),
        _number(reported),
        _number(arrived),
        int(row or 0),
        None if logs is None else _logs(logs),
    )


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _number(text: str) -> int | None:
    if not text:
        return None
    if int(text) > _MOST:
        raise BadStreamCursor
    return int(text)


def _logs(text: str) -> dict[str, int]:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise BadStreamCursor from error
    if not isinstance(found, dict) or not all(map(_is_offset, found.values())):
        raise BadStreamCursor
    return found


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST
