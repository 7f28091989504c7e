"""What was logged, on its way to the agent: rows of numbers, tensors read when they are ready."""

import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from torchloom.bus.messages import Event, Head, Message, Metrics, Value

MOST = 1 << 16  # rows between two looks
_PLAIN = frozenset((float, int, bool, str, type(None)))
_VALUES = 20_000  # in one message, which must not be too long to be sent
_LONGEST = 1000  # characters of a text

Row = tuple[int, float, dict[str, Any]]


class Notes:
    """Rows as the program logs them; the link's thread takes them out."""

    def __init__(self, head: Head) -> None:
        self.rows: deque[Row] = deque(maxlen=MOST)
        self._head = head
        self._waiting: deque[Row] = deque()  # in order, the first one not ready
        self._bad: set[str] = set()  # names of losses that are not finite now

    def add(self, step: int, values: dict[str, Any]) -> None:
        """Keep numbers as they are and tensors as they are now; nothing is read here."""
        if not _PLAIN.issuperset(map(type, values.values())):
            values = {name: keep(value) for name, value in values.items()}
        self.rows.append((step, time.time(), values))

    def collect(self) -> Iterator[Message]:
        """Yield messages with all rows that can be read by now, and what is wrong with them."""
        while self.rows:
            self._waiting.append(self.rows.popleft())
        done = []
        while self._waiting and all(map(is_ready, self._waiting[0][2].values())):
            step, when, values = self._waiting.popleft()
            numbers = {name: read(value) for name, value in values.items()}
            done.append((step, when, numbers))
            yield from self._alarms(step, when, numbers)
        yield from self._batches(done)

    def close(self) -> None:
        """Keep nothing from now on."""
        self.rows = deque(maxlen=0)

    def _batches(self, rows: list[tuple[int, float, dict[str, Value]]]) -> Iterator[Metrics]:
        names: tuple[str, ...] = ()
        batch: list[tuple[Value, ...]] = []
        for step, when, values in rows:
            if tuple(values) != names or len(batch) * len(names) >= _VALUES:
                if batch:
                    yield Metrics(self._head, names, tuple(batch))
                names, batch = tuple(values), []
            batch.append((step, when, *values.values()))
        if batch:
            yield Metrics(self._head, names, tuple(batch))

    def _alarms(self, step: int, when: float, values: dict[str, Value]) -> Iterator[Event]:
        """Yield an event when a loss stops being finite; once, until it is finite again."""
        for name, value in values.items():
            if "loss" not in name.lower() or not isinstance(value, float):
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
