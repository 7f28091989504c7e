"""What somebody wants of a run's metrics, in words such as `loss<0.3` or `best:accuracy>=0.9`."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.errors import UserError, shorten

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_LONGEST = 500  # letters of a condition
_WORDS = re.compile(r"\s*(?:(last|best|min|max):)?([^<>=!]+?)\s*(<=|>=|!=|==|<|>|=)\s*(\S+)\s*")


class BadCondition(UserError):
    """A condition on a metric that cannot be understood."""

    code = "bad_condition"

    def __init__(self, words: str) -> None:
        super().__init__(
            f"{shorten(words)!r} is no condition on a metric; write loss<0.3 or best:accuracy>=0.9"
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """A metric, which of its values, and what it is compared with."""

    name: str
    which: str
    holds: Callable[[Any, Any], bool]
    value: float

    def fits(self, metrics: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a run's metrics are so; one that it does not have is not."""
        found = metrics.get(self.name, {}).get(self.which)
        return found is not None and self.holds(float(found), self.value)


def condition(words: str) -> Condition:
    """Return what these words mean."""
    found = _WORDS.fullmatch(words) if len(words) <= _LONGEST else None
    if found is None:
        raise BadCondition(words)
    which, name, sign, number = found.groups()
    try:
        return Condition(name, which or "last", _OPERATORS[sign], float(number))
    except ValueError:
        raise BadCondition(words) from None
