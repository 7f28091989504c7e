"""Time that passes only from event to event."""

import heapq
import random
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of what happens when; the same seed gives the same order."""

    def __init__(self, seed: int, is_traced: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.count = 0
        self.lines: list[str] = []
        self.is_traced = is_traced
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, seconds: float, act: Callable[..., None], *words: Any) -> None:
        """Have something happen so many seconds from now."""
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, act, words))

    def soon(self, act: Callable[..., None], *words: Any, mean: float = 0.002) -> None:
        """Have something happen after a while that varies a lot."""
        self.after(mean * (0.2 + 4.0 * self.rng.random() ** 3), act, *words)

    def advance(self) -> bool:
        """Let the next thing happen; return whether there was one."""
        if not self._heap:
            return False
        self.now, _, act, words = heapq.heappop(self._heap)
        self.count += 1
        act(*words)
        return True

    def chance(self, share: float) -> bool:
        return share > 0 and self.rng.random() < share

    def note(self, *words: object) -> None:
        """Keep a line for whoever replays the seed."""
        if self.is_traced:
            self.lines.append(f"{self.count:5} {self.now:9.4f}  " + " ".join(map(str, words)))
