"""What lives tell of themselves before anybody knows them: their records may overtake them."""

from collections import Counter, deque

from torchloom.bus.messages import Event

_MOST = 1000  # words that are kept; of more the oldest go

Told = tuple[str, Event]  # by which agent


class Early:
    """Words that wait until whoever said them is known."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped
        self._kept: deque[Told] = deque()

    def keep(self, agent: str, said: Event) -> None:
        """Keep a word for later."""
        self._kept.append((agent, said))
        if len(self._kept) > _MOST:
            self._kept.popleft()
            self._dropped["unknown_rank"] += 1

    def take(self, incarnation: str) -> list[Told]:
        """Return what a life has told so far, and keep it no longer."""
        if not self._kept:
            return []
        found = [one for one in self._kept if one[1].head.incarnation == incarnation]
        for one in found:
            self._kept.remove(one)
        return found
