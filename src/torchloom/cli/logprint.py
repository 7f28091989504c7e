"""Print log lines of several ranks: named or as JSON, all of them or the last few of each."""

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from torchloom.cli.output import write_as_is
from torchloom.launch.logs.reader import Wait
from torchloom.launch.records.record import RankRecord

_BETWEEN = ":"  # behind the number of a line's source


class Shape(Protocol):
    """How one line of one source is printed."""

    def __call__(self, source: int, text: str) -> str: ...


class NamedLines:
    """Each line behind the name of its rank."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, source: int, text: str) -> str:
        return f"{self._names[source]}{text}"


class JsonLines:
    """Each line as one object."""

    def __init__(self, ranks: Sequence[RankRecord], stream: str) -> None:
        self._heads = [
            {"role": rank.role, "replica": rank.replica, "rank": rank.rank, "stream": stream}
            for rank in ranks
        ]

    def __call__(self, source: int, text: str) -> str:
        return json.dumps({**self._heads[source], "line": text})


class LastLines:
    """Print lines as they come; with a limit, hold back all but the last until caught up."""

    def __init__(self, shape: Shape, last: int | None, raw: bool = False) -> None:
        self._shape = shape
        self._raw = raw
        self._last = last
        self._held: dict[int, deque[str]] = {}
        self._caught_up = last is None

    def keys(self, sources: int) -> list[str]:
        """Return what each source's lines must begin with when they come to `take`."""
        return [f"{source}{_BETWEEN}" for source in range(sources)]

    def take(self, line: str) -> None:
        """Print a line, or hold it back."""
        source, _, text = line.removesuffix("\n").partition(_BETWEEN)
        if self._caught_up:
            self._print(int(source), text)
        else:
            held = self._held.setdefault(int(source), deque(maxlen=self._last))
            held.append(text)

    def release(self) -> None:
        """Print what was held back; from now on nothing is."""
        for source in sorted(self._held):
            for text in self._held[source]:
                self._print(source, text)
        self._held.clear()
        self._caught_up = True
        sys.stdout.flush()

    def waiting(self, wait: Wait) -> Callable[[float], bool]:
        """Return `wait` for a reader that follows: who waits has caught up."""

        def release_and_wait(pause: float) -> bool:
            self.release()
            return wait(pause)

        return release_and_wait

    def _print(self, source: int, text: str) -> None:
        line = self._shape(source, text)
        if self._raw:
            write_as_is(f"{line}\n")
            return
        is_left_coloured = "\x1b[" in line and sys.stdout.isatty()
        sys.stdout.write(f"{line}\x1b[0m\n" if is_left_coloured else f"{line}\n")
