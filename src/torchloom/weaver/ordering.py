"""In which order runs are listed: by a word such as `-last:loss` or `config:lr`, paged; pure.

Numbers come before texts, and what a run does not have comes last, whichever way one sorts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torchloom.errors import UserError, shorten
from torchloom.history.compare import flat

CONFIG = "config"
_PLAIN = (
    *("state", "name", "owner", "project", "group", "commit", "branch"),
    *("step", "attempt", "world_size", "created_at", "duration"),
)
_METRICS = ("last", "best", "min", "max")
_LONGEST = 200  # letters of a text by which runs are sorted

Brief = Mapping[str, Any]
Key = tuple[Any, ...]


class BadOrder(UserError):
    """A word by which runs cannot be sorted."""

    code = "bad_order"

    def __init__(self, word: str) -> None:
        ways = f"{', '.join(_PLAIN)}; config:KEY; {', '.join(f'{one}:METRIC' for one in _METRICS)}"
        super().__init__(f"runs cannot be sorted by {shorten(word)!r}; there are: {ways}")
        self.field = "sort"
        self.remedy = "name one of them, with - before it for the other way"


@dataclass(frozen=True, slots=True)
class Order:
    """By what runs are sorted, and which way."""

    kind: str
    name: str
    is_down: bool

    @property
    def needs_config(self) -> bool:
        return self.kind == CONFIG

    def key(self, brief: Brief) -> Key:
        """Return what sorts a run; of equals the newest is first."""
        return self._key(self._value(brief), _seconds(brief["created_at"]), brief["job_id"])

    def cursor(self, brief: Brief) -> str:
        """Return the place behind a run."""
        value = self._value(brief)
        return json.dumps([value, _seconds(brief["created_at"]), brief["job_id"]])

    def place(self, cursor: str) -> Key | None:
        """Return the key that a cursor stands behind; ValueError when it is no such place."""
        if not cursor:
            return None
        value, made, job = json.loads(cursor)
        return self._key(value, float(made), str(job))

    def _value(self, brief: Brief) -> Any:
        if self.kind == CONFIG:
            found = dict(flat(brief[CONFIG])).get(self.name)
        elif self.kind:
            found = brief["metrics"].get(self.name, {}).get(self.kind)
        elif self.name == "duration":
            found = (brief["summary"] or {}).get("wall_seconds")
        else:
            found = brief[self.name]
        return _plain(found)

    def _key(self, value: Any, made: float, job: str) -> Key:
        newest = (-made, *_backwards(job))
        if value is None:
            return (2, 0, newest)
        if isinstance(value, str):
            return (1, _backwards(value) if self.is_down else tuple(map(ord, value)), newest)
        return (0, -float(value) if self.is_down else float(value), newest)


def order_of(word: str) -> Order:
    """Return what a word asks for."""
    kind, colon, name = word.removeprefix("-").partition(":")
    is_down = word.startswith("-")
    if colon and name and kind in (CONFIG, *_METRICS):
        return Order(kind, name, is_down)
    if not colon and kind in _PLAIN:
        return Order("", kind, is_down)
    raise BadOrder(word)


def _plain(value: Any) -> float | str | None:
    """Return a value as it is compared: a number, a text, or nothing."""
    if value is None or value == "" or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, int | float):
        return float(value)
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST]


def _backwards(text: str) -> tuple[int, ...]:
    return (*(-ord(letter) for letter in text), 1)  # what goes on comes before what ends


def _seconds(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0
