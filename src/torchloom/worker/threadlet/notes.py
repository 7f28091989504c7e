"""What was logged, on its way to the agent: rows of numbers, tensors read when they are ready."""

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from torchloom.bus.messages import Event, Head, Message, Metrics, Value

MOST = 1 << 16  # rows between two looks
_NUMBERS = frozenset((float, int, bool, type(None)))
_PLAIN = _NUMBERS | {str}
_VALUES = 20_000  # in one message, which must not be too long to be sent
_LONGEST = 1000  # characters of a text

Row = tuple[int, float, dict[str, Any], bool]  # the last: whether all of it is numbers


class Notes:
    """Rows as the program logs them; the link's thread takes them out."""

    def __init__(self, head: Head) -> None:
        self.rows: deque[Row] = deque(maxlen=MOST)
        self._head = head
        self._held: Row | None = None  # the oldest one, while its tensors are not ready
        self._bad: set[str] = set()  # names of losses that are not finite now

    def move_on(self, head: Head) -> None:
        """Speak for another generation from now on."""
        self._head = head

    def add(self, step: int, values: dict[str, Any]) -> None:
        """Keep numbers as they are and tensors as they are now; nothing is read here."""
        if _NUMBERS.issuperset(map(type, values.values())):
            self.rows.append((step, time.time(), values, True))
        else:
            kept = {name: keep(value) for name, value in values.items()}
            self.rows.append((step, time.time(), kept, False))

    def collect(self) -> Iterator[Message]:
        """Yield messages with all rows that can be read by now, and what is wrong with them."""
        for names, group in itertools.groupby(self._read(), lambda row: tuple(row[2])):
            rows = list(group)
            yield from self._alarms(names, rows)
            most = max(1, _VALUES // max(1, len(names)))
            for at in range(0, len(rows), most):
                part = rows[at : at + most]
                numbers = tuple([(step, when, *values.values()) for step, when, values in part])
                yield Metrics(self._head, names, numbers)

    def close(self) -> None:
        """Keep nothing from now on."""
        self._left = self.rows, self._held  # a fork must not free what lies on a device
        self.rows = deque(maxlen=0)

    def _read(self) -> Iterator[tuple[int, float, dict[str, Value]]]:
        """Yield rows in the order of their logging, up to the first that is not ready."""
        for _ in range(len(self.rows) + (self._held is not None)):  # more may come meanwhile
            row = self._held or self.rows.popleft()
            step, when, values, is_read = row
            if not is_read:
                if not all(map(is_ready, values.values())):
                    self._held = row
                    return
                values = {name: read(value) for name, value in values.items()}
            self._held = None
            yield step, when, values

    def _alarms(
        self, names: tuple[str, ...], rows: list[tuple[int, float, dict[str, Value]]]
    ) -> Iterator[Event]:
        """Yield an event when a loss stops being finite; once, until it is finite again."""
        for name in _losses(names):
            for step, when, values in rows:
                value = values[name]
                if not isinstance(value, float):
                    continue
                if math.isfinite(value):
                    self._bad.discard(name)
                elif name not in self._bad:
                    self._bad.add(name)
                    facts: dict[str, Value] = {"name": name, "value": str(value)}
                    yield Event(self._head, "nan", step, when, facts)


class Unread:
    """A tensor as it was when it was logged, on its own device."""

    __slots__ = ("_event", "_tensor")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach().clone()
        self._event: Any = None
        if tensor.is_cuda:
            self._event = sys.modules["torch"].cuda.Event()
            self._event.record()

    def is_ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def read(self) -> Any:
        return self._tensor.item()


def keep(value: Any) -> Any:
    """Return what can be read later; what is no number at all is kept as nothing."""
    if type(value) in _PLAIN:
        return value
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return Unread(value) if value.numel() == 1 else None
        return float(value)
    except Exception:  # whatever a program hands over: logging never raises
        return None


def is_ready(value: Any) -> bool:
    return not isinstance(value, Unread) or value.is_ready()


def read(value: Any) -> Value:
    """Return the number that was kept."""
    try:
        found = value.read() if isinstance(value, Unread) else value
    except Exception:  # a device that failed: the number is lost, nothing else
        return None
    if isinstance(found, str):
        return found[:_LONGEST]
    return found if type(found) in _PLAIN else None


@lru_cache(64)
def _losses(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if "loss" in str(name).lower())
