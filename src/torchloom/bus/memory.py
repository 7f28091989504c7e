"""A bus inside one process: for tests, and for whatever runs as a single process."""

from torchloom.bus.api import BusLost, TooLong
from torchloom.bus.codec import LONGEST
from torchloom.bus.delivery import BaseBus, Mailbox


class Exchange:
    """Stands where a server would: every `MemoryBus` made on it hears all the others."""

    def __init__(self) -> None:
        self.up = True
        self.buses: list[MemoryBus] = []

    def stop(self) -> None:
        """Cut every bus off."""
        if self.up:
            self.up = False
            for bus in list(self.buses):
                bus._tell_lost()

    def start(self) -> None:
        """Let every bus back in."""
        if not self.up:
            self.up = True
            for bus in list(self.buses):
                bus._tell_back()

    def carry(self, subject: str, data: bytes, reply: str) -> bool:
        """Bring a message to all who hear it; tell whether there was anybody."""
        heard = [bus._take(subject, data, reply) for bus in list(self.buses)]
        return any(heard)


class MemoryBus(BaseBus):
    """One participant's end of an exchange; alone, it hears itself."""

    def __init__(self, exchange: Exchange | None = None, inbox: str = "") -> None:
        super().__init__(inbox)
        self._exchange = exchange or Exchange()
        self._exchange.buses.append(self)

    @property
    def connected(self) -> bool:
        return self._exchange.up and not self._closed

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.connected:
            raise BusLost(f"cannot say anything on {subject}: the bus is cut off")
        if len(data) > LONGEST:
            raise TooLong(f"{len(data)} bytes for {subject}; the bus takes {LONGEST}")
        heard = self._exchange.carry(subject, data, reply)
        if not heard and reply:
            self._exchange.carry(reply, b"", _NOBODY)

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        if not self.connected:
            raise BusLost("the bus is cut off")

    def _take(self, subject: str, data: bytes, reply: str) -> bool:
        if subject in self._answers:
            self._answered(subject, None if reply == _NOBODY else data)
            return True
        hearing = [box for box in self._mailboxes if matches(box.subject, subject)]
        for mailbox in hearing:
            mailbox.put([(subject, data, reply)])
        return bool(hearing)

    async def _listen(self, mailbox: Mailbox) -> None:
        pass  # an exchange looks through all mailboxes

    def _unlisten(self, mailbox: Mailbox) -> None:
        pass

    async def _leave(self) -> None:
        if self in self._exchange.buses:
            self._exchange.buses.remove(self)


def matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject is among those a pattern stands for."""
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(
        want in ("*", word) for want, word in zip(wanted, words, strict=True)
    )


_NOBODY = "nobody listens"  # no subject has blanks
