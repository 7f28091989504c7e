"""The few things that the writer of records says to a database, whichever it is."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class Sql(Protocol):
    """A transaction; words have a `?` for each value."""

    append: str  # an expression: `data` followed by a value

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]: ...
    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None: ...


def marks(count: int) -> str:
    """Return so many `?` for a list."""
    return ",".join("?" * count)
