"""Logged metrics on their way to the agent; tensors are read when their device is ready."""

import itertools
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol

from torchloom.messages.plane import Event, Head, Message, Metrics, Value

_PERIOD = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 1 << 16  # rows between two ticks of the link
_NUMBERS = frozenset((float, int, bool, type(None)))
_VALUES = 20_000  # in one message, whose length is limited
_SIXTY_FOUR_BITS = range(-(1 << 63), 1 << 64)  # integers that can be sent
_MOST_REPORTS = 50  # lines about dropped values


class Gauge(Protocol):
    """Numbers that are read once a second, in the link's thread."""

    def read(self) -> dict[str, float]:
        """Return the numbers now; none while nothing is known."""
        ...


class Vitals:
    """Samples of the process, taken in the link's thread."""

    def __init__(self) -> None:
        self.gauges: list[Gauge] = []
        self._at = 0.0
        self._cpu = 0.0

    @property
    def is_due(self) -> bool:
        """Tell whether another sample is due."""
        return time.monotonic() - self._at >= _PERIOD

    def sample(self, step_seconds: float, knobs: dict[str, float]) -> dict[str, Any]:
        """Return one row of metrics."""
        now, cpu = time.monotonic(), time.process_time()
        share = (cpu - self._cpu) / (now - self._at) if self._at else None
        self._at, self._cpu = now, cpu
        row: dict[str, Any] = {
            "loom/step_seconds": step_seconds,
            "loom/cpu": share,
            "loom/memory": _resident(),
            **{f"loom/{name}": value for name, value in knobs.items()},
        }
        if (used := _device_memory()) is not None:
            row["loom/device_memory"] = used
        for gauge in self.gauges:
            row |= gauge.read()
        return row


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None


def _device_memory() -> int | None:
    """Return the bytes that torch has allocated on its GPU, if the program uses one."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    used: int = cuda.memory_allocated()
    return used


# Step, time, values, whether all are numbers; the step of the training, if it is another one.
Row = tuple[int, float, dict[str, Any], bool, int | None]
Read = tuple[int, float, dict[str, Value], int | None]


class MetricRows:
    """Rows that the program has logged and the link's thread collects."""

    def __init__(self, head: Head, write: Callable[[str], object] | None = None) -> None:
        self.rows: deque[Row] = deque(maxlen=MOST)
        self.lost = 0  # rows that were logged faster than they were collected
        self._head = head
        self._held: Row | None = None  # the oldest one, while its tensors are not ready
        self._bad: set[str] = set()  # names of losses that are not finite now
        self._reported: set[tuple[str, str]] = set()  # what was dropped, and why
        self._write = write

    def move_on(self, head: Head) -> None:
        """Report for another generation from now on."""
        self._head = head

    def add(self, step: int, values: dict[str, Any], at: int | None = None) -> None:
        """Add a row. Tensors are cloned and read later."""
        rows = self.rows
        if len(rows) == MOST:
            self.lost += 1
        if _NUMBERS.issuperset(map(type, values.values())):
            rows.append((step, time.time(), values, True, at))
        else:
            kept = {name: keep(value) for name, value in values.items()}
            rows.append((step, time.time(), kept, False, at))

    def drop(self, what: str, why: str) -> None:
        """Write once to standard error that something is dropped, and why."""
        if (what, why) in self._reported or len(self._reported) > _MOST_REPORTS:
            return
        self._reported.add((what, why))
        is_last = len(self._reported) > _MOST_REPORTS
        line = "further ones are not reported" if is_last else f"{what} is not kept: {why}"
        (self._write or sys.stderr.write)(f"loom: {line}\n")

    def collect(self) -> Iterator[Message]:
        """Yield all rows that are ready as messages, and events for losses that are not finite."""
        if self.lost:
            self.drop("a part of the numbers", f"more than {MOST} calls of log in half a second")
        for keys, group in itertools.groupby(self._read(), lambda row: tuple(row[2])):
            rows = list(group)
            names = _texts(keys)
            yield from self._alarms(keys, rows)
            self._report_repeats(names, rows)
            most = max(1, _VALUES // max(1, len(names)))
            for at in range(0, len(rows), most):
                part = rows[at : at + most]
                numbers = tuple([(step, when, *values.values()) for step, when, values, _ in part])
                yield Metrics(self._head, names, numbers)

    def close(self) -> None:
        """Drop all rows from now on."""
        self._left = self.rows, self._held  # a fork must not free memory of a device
        self.rows = deque(maxlen=0)

    def _read(self) -> Iterator[Read]:
        """Yield rows in the order of logging, up to the first that is not ready."""
        for _ in range(len(self.rows) + (self._held is not None)):  # more may come meanwhile
            row = self._held or self.rows.popleft()
            step, when, values, is_read, at = row
            if not is_read:
                if not all(map(is_ready, values.values())):
                    self._held = row
                    return
                values = {name: self._number(name, value) for name, value in values.items()}
            self._held = None
            yield step, when, values, at

    def _number(self, name: Any, value: Any) -> Value:
        found = read(value)
        if isinstance(found, NoNumber):
            self.drop(repr(name), found.why)
            return None
        return found

    def _report_repeats(self, names: tuple[str, ...], rows: list[Read]) -> None:
        """Report values that were logged twice in one step: only the last one is shown."""
        for (step, *_), (following, *_) in itertools.pairwise(rows):
            if step == following:
                what = f"all but the last {', '.join(map(repr, names[:3]))} of a step"
                self.drop(what, "it was logged again in the same step; `step=` keeps each")
                return

    def mend(self, metrics: Metrics) -> Metrics:
        """Return the metrics with values and names that can be sent."""
        rows = []
        for step, when, *cells in metrics.rows:
            mended = [self._fit(name, one) for name, one in zip(metrics.names, cells, strict=True)]
            rows.append((step, when, *mended))
        return Metrics(metrics.head, tuple(map(_sendable, metrics.names)), tuple(rows))

    def _fit(self, name: str, value: Value) -> Value:
        """Return an integer as a float if it is too large."""
        if not isinstance(value, int) or value in _SIXTY_FOUR_BITS:
            return value
        try:
            return float(value)
        except OverflowError:
            self.drop(repr(name), "it is larger than any number that can be stored")
            return None

    def _alarms(self, names: tuple[str, ...], rows: list[Read]) -> Iterator[Event]:
        """Yield an event when a loss stops being finite, once until it is finite again."""
        for name in _losses(names):
            for step, when, values, at in rows:
                value = values[name]
                if not isinstance(value, float):
                    continue
                if math.isfinite(value):
                    self._bad.discard(name)
                elif name not in self._bad:
                    self._bad.add(name)
                    facts: dict[str, Value] = {"name": str(name), "value": str(value)}
                    if at is not None:
                        facts["at"] = at
                    yield Event(self._head, "nan", step, when, facts)


class Unread:
    """A clone of a logged tensor, on its device."""

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


class NoNumber:
    """A value that is not a number, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def keep(value: Any) -> Any:
    """Return a value that can be read later."""
    if type(value) in _NUMBERS:
        return value
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return Unread(value) if (count := value.numel()) == 1 else _no_number(value, count)
        return _no_number(value) if isinstance(value, str | bytes) else float(value)
    except Exception:  # any object may be passed: logging never raises
        return _no_number(value)


def _no_number(value: Any, count: int | None = None) -> NoNumber:
    kind = type(value).__name__
    what = f"a {kind}" if count is None else f"a {kind} of {count} numbers"
    return NoNumber(f"{what} is not one number")


def is_ready(value: Any) -> bool:
    return not isinstance(value, Unread) or value.is_ready()


def read(value: Any) -> Value | NoNumber:
    """Return the number of a kept value."""
    if isinstance(value, NoNumber):
        return value
    try:
        found = value.read() if isinstance(value, Unread) else value
    except Exception as error:  # a failed device loses the number, nothing else
        return NoNumber(f"its device failed: {type(error).__name__}")
    return found if type(found) in _NUMBERS else _no_number(found)


@lru_cache(64)
def _losses(names: tuple[str, ...]) -> tuple[str, ...]:
    return losses(names)


def losses(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that contain `loss`."""
    return tuple(name for name in names if "loss" in str(name).lower())


@lru_cache(64)
def _texts(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the keys of a row as text."""
    return tuple(name if type(name) is str else str(name) for name in names)


def _sendable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
