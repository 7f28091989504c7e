"""Find where runs differ: nested values as flat names, one row a name, one value a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """A name whose value is not the same in all runs; a run may have none."""

    name: str
    values: tuple[Any, ...]
    missing: tuple[bool, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "name": self.name,
            "values": list(self.values),
            "missing": list(self.missing),
        }


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested mappings under its dotted name; lists are values."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def differences(
    runs: Sequence[Mapping[str, Any]], names: Iterable[str] | None = None
) -> list[Difference]:
    """Return the names whose values differ, or those asked for, by name."""
    columns = [dict(flat(run)) for run in runs]
    wanted = sorted({name for column in columns for name in column}) if names is None else names
    rows = (_row(name, columns) for name in wanted)
    return [row for row in rows if names is not None or not _is_same(row)]


def shared(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return how many names have one value in all runs."""
    columns = [dict(flat(run)) for run in runs]
    names = {name for column in columns for name in column}
    return sum(_is_same(_row(name, columns)) for name in names)


def winner(values: Sequence[Any], lower: bool) -> int | None:
    """Return which of the numbers is the best; nothing when there are none, or several are."""
    numbers = [
        (value if lower else -value, index)
        for index, value in enumerate(values)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < 2:
        return None
    numbers.sort()
    return numbers[0][1] if numbers[0][0] < numbers[1][0] else None


def _row(name: str, columns: Sequence[Mapping[str, Any]]) -> Difference:
    values = tuple(column.get(name) for column in columns)
    return Difference(name, values, tuple(name not in column for column in columns))


def _is_same(row: Difference) -> bool:
    first = row.values[0]
    alike = all(type(value) is type(first) and value == first for value in row.values)
    return alike and len(set(row.missing)) == 1
