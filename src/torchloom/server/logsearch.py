"""One page of a job's logs: which lines, from where on, and where the next page begins."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchloom.server.joblogs import LEVELS, Line, Output, merged, tail_of
from torchloom.server.stamps import Stamps

CHUNK = 2000  # lines that are looked at between two looks at the clock
MOST_BYTES = 64 << 20  # of a page without enough matches; the next page goes on behind them


@dataclass(frozen=True, slots=True)
class Wish:
    """Lines of which time (unix seconds) and gravity; patterns are not our matter."""

    level: str = ""
    since: float | None = None
    until: float | None = None
    tail: int | None = None

    def is_met(self, line: Line) -> bool:
        return not self.level or LEVELS.index(line.level) >= LEVELS.index(self.level)


class Search:
    """Read on from positions; blocking, of one thread at a time."""

    def __init__(
        self, outputs: list[Output], positions: dict[str, int], wish: Wish, is_final: bool
    ) -> None:
        self._wish = wish
        self.positions = {output.key: positions.get(output.key, 0) for output in outputs}
        if not positions:
            self._begin(outputs)
        self._lines: Iterator[Line] = merged(outputs, self.positions, is_final)
        self._read = 0
        self.is_done = False

    def take(self, count: int) -> list[Line]:
        """Return the next lines that are wanted, at most so many."""
        found: list[Line] = []
        for line in self._lines:
            if self._is_too_late(line):
                break  # and so is all that follows
            self._read += line.end - line.start
            self.positions[line.output.key] = line.end
            if self._wish.is_met(line):
                found.append(line)
            if len(found) == count or self._read > MOST_BYTES:
                return found
        self.is_done = True
        return found

    @property
    def is_spent(self) -> bool:
        """Tell whether there is nothing more to look at in this page."""
        return self.is_done or self._read > MOST_BYTES

    def _is_too_late(self, line: Line) -> bool:
        return self._wish.until is not None and line.time > self._wish.until

    def _begin(self, outputs: list[Output]) -> None:
        wish = self._wish
        for output in outputs:
            if wish.since is not None:
                self.positions[output.key] = _since(output, wish.since)
            elif wish.tail is not None:
                self.positions[output.key] = tail_of(output, wish.tail)


def _since(output: Output, since: float) -> int:
    """Return where the first line begins that was written at a time or later."""
    stamps = Stamps(output.folder, output.stream)
    try:
        offset = stamps.offset_at(since)
    finally:
        stamps.close()
    try:
        with open(output.path, "rb") as file:
            if offset is None:
                return tail_of(output, 0)
            file.seek(max(0, offset - 1))
            return max(0, offset - 1) + len(file.readline()) if offset else 0
    except FileNotFoundError:
        return 0
