"""A bus inside one process: for tests, and for what runs as a single process."""

from torchloom.bus.api import BusLost, TooLong
from torchloom.bus.codec import LONGEST
from torchloom.bus.delivery import BaseBus, Mailbox


class Exchange:
    """Takes the place of a server: each `MemoryBus` on it receives what the others publish."""

    def __init__(self) -> None:
        self.up = True
        self.buses: list[MemoryBus] = []

    def stop(self) -> None:
        """Disconnect every bus."""
        if self.up:
            self.up = False
            for bus in list(self.buses):
                bus._notify_lost()

    def start(self) -> None:
        """Connect every bus again."""
        if not self.up:
            self.up = True
            for bus in list(self.buses):
                bus._notify_back()

    def carry(self, subject: str, data: bytes, reply: str) -> bool:
        """Deliver a message to all its subscribers; return whether there was any."""
        delivered = [bus._deliver(subject, data, reply) for bus in list(self.buses)]
        return any(delivered)


class MemoryBus(BaseBus):
    """One participant's end of an exchange; alone, it receives what it publishes."""

    def __init__(self, exchange: Exchange | None = None, inbox: str = "") -> None:
        super().__init__(inbox)
        self._exchange = exchange or Exchange()
        self._exchange.buses.append(self)

    @property
    def connected(self) -> bool:
        return self._exchange.up and not self._closed

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.connected:
            raise BusLost(f"cannot publish on {subject}: the bus is disconnected")
        if len(data) > LONGEST:
            raise TooLong(f"{len(data)} bytes for {subject}; the bus takes {LONGEST}")
        is_delivered = self._exchange.carry(subject, data, reply)
        if not is_delivered and reply:
            self._exchange.carry(reply, b"", _NO_SUBSCRIBER)

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        if not self.connected:
            raise BusLost("the bus is disconnected")

    def _deliver(self, subject: str, data: bytes, reply: str) -> bool:
        if subject in self._replies:
            self._replied(subject, None if reply == _NO_SUBSCRIBER else data)
            return True
        matching = [box for box in self._mailboxes if matches(box.subject, subject)]
        for mailbox in matching:
            mailbox.put([(subject, data, reply)])
        return bool(matching)

    async def _subscribed(self, mailbox: Mailbox) -> None:
        pass  # an exchange checks all mailboxes

    def _unsubscribed(self, mailbox: Mailbox) -> None:
        pass

    async def _leave(self) -> None:
        if self in self._exchange.buses:
            self._exchange.buses.remove(self)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches a subject."""
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(
        want in ("*", word) for want, word in zip(wanted, words, strict=True)
    )


_NO_SUBSCRIBER = "no subscriber"  # no subject has blanks
