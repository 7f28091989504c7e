"""What every request and answer is made of: names, keys, texts."""

import base64
import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import ConfigDict, Field

from torchloom.server.problems import ApiProblem
from torchloom.server.schema import Schema

LONGEST_PAGE = 512  # letters of a cursor
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,9})?"
LONGEST = 300  # letters of a name


Limit = Annotated[int, Query(ge=1, le=1000, description="maximum number of items")]
Cursor = Annotated[
    str | None,
    Query(max_length=LONGEST_PAGE, description="`next` of the previous page"),
]


class Page(Schema):
    """Some of a list, and where to read on."""

    next: str | None = None


def cursor_of(*place: Any) -> str:
    """Return a position in a list as opaque text."""
    text = json.dumps(place, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def place_of(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """Return the position that a cursor encodes: one value of each type."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = json.loads(text)
        is_ours = isinstance(found, list) and [type(each) for each in found] == list(kinds)
        if is_ours and all(map(_is_stored, found)):
            return tuple(found)
    except (ValueError, RecursionError):
        pass  # refused below
    raise ApiProblem(
        422,
        "bad_cursor",
        "cursor is not from this list",
        "cursor",
        "leave it out to begin at the start, or give `next` of the page before",
    )


def seconds_of(name: str, text: str | None) -> float | None:
    """Return a time of a query, ISO 8601 or unix seconds, as unix seconds."""
    if text is None:
        return None
    try:
        return float(text) if re.fullmatch(_NUMBER, text) else _moment(text)
    except (ValueError, OverflowError):
        raise ApiProblem(
            422,
            "bad_value",
            f"{name} is not a time",
            name,
            "write it as 2026-01-31T12:00:00Z, or as unix seconds",
        ) from None


def _is_stored(value: Any) -> bool:
    """Return whether a database column can hold a value."""
    if isinstance(value, int):
        return 0 <= value < 1 << 63
    if isinstance(value, float):
        return value - value == 0  # neither NaN nor infinite
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _moment(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


Text = Annotated[str, Field(max_length=1000)]
Uuid = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Name = Annotated[
    str,
    Path(
        alias="id",
        min_length=1,
        max_length=LONGEST,
        description="a job: its id, a prefix of it, or its name",
    ),
]
AbsolutePath = Annotated[str | None, Query(max_length=4096, pattern=r"^/[^\x00-\x1f]*$")]
CommandId = Annotated[str, Path(min_length=1, max_length=LONGEST)]
RunId = Annotated[str, Path(min_length=1, max_length=LONGEST)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="a repeated request with the same key acts once",
    ),
]


class Answer(Schema):
    """The base of answers."""

    model_config = ConfigDict(extra="allow")


class Request(Schema):
    """The base of requests; an unknown member is refused."""

    model_config = ConfigDict(extra="forbid")
