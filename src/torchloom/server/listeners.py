"""Who listens to which job; clients with the same wish are sent the same bytes."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torchloom.server.desk import Desk
from torchloom.server.drafts import Draft, Standing, encoded
from torchloom.server.frames import text_frame
from torchloom.server.outlets import Message, Outlet, Packet
from torchloom.server.sources import LogSource

_LOGS_AGAIN = 1.0  # seconds after which a job may have outputs that it had not
_HELD = 4_000  # messages that wait for a client to catch up; with more it reads on by itself


@dataclass(frozen=True, slots=True)
class Wish:
    """Which messages a client wants."""

    types: frozenset[str]
    ranks: frozenset[int] | None = None

    def key(self) -> str:
        """Return what is the same for all clients of the same wish; quicker to look up."""
        return f"{sorted(self.types)} {self.ranks and sorted(self.ranks)}"

    def wants(self, draft: Draft) -> bool:
        if draft.kind not in self.types:
            return False
        return self.ranks is None or draft.rank < 0 or draft.rank in self.ranks


class Listener:
    """One client's ear for one job. While it is held, what is new waits for it."""

    outlet: Outlet  # there before it is released

    def __init__(self, job: str, wish: Wish, most_held: int = _HELD) -> None:
        self.job = job
        self.wish = wish
        self._key = wish.key()
        self._most_held = most_held
        self._held: list[Message] | None = None
        self.is_overrun = False

    def hold(self) -> None:
        self._held, self.is_overrun = [], False

    def hear(self, messages: Sequence[Message], packets: dict[str, Packet]) -> None:
        """Take what is new; clients with the same wish are sent the same bytes."""
        if self._held is not None:
            self._hold(messages)
            return
        packet = packets.get(self._key)
        if packet is None:
            packet = packets[self._key] = self._packet(messages, is_shared=True)
        if packet.messages:
            self.outlet.send(packet)

    def say(self, messages: Sequence[Message]) -> None:
        """Send something to this client alone."""
        packet = self._packet(messages)
        if packet.messages:
            self.outlet.send(packet)

    def release(self, at: Standing) -> None:
        """Send what waited and is new to a client that stands there; from now on nothing waits."""
        held, self._held = self._held or [], None
        self.say([message for message in held if at.is_behind(message.draft)])

    def _hold(self, messages: Sequence[Message]) -> None:
        assert self._held is not None
        if self.is_overrun or len(self._held) > self._most_held:
            self._held, self.is_overrun = [], True
        else:
            self._held += messages

    def _packet(self, messages: Sequence[Message], is_shared: bool = False) -> Packet:
        wanted = [message for message in messages if self.wish.wants(message.draft)]
        return Packet(wanted, is_shared)


class Channel:
    """One job that somebody listens to."""

    def __init__(self, job: str, standing: Standing) -> None:
        self.job = job
        self.standing = standing
        self.listeners: set[Listener] = set()
        self.logs: LogSource | None = None
        self._looked = 0.0

    def has(self, wish: Wish) -> bool:
        """Tell whether all that a client wants is read already."""
        return "log" not in wish.types or (
            self.logs is not None and self.logs.follows(wish.ranks or ())
        )

    def join(self, listener: Listener) -> Standing:
        """Have what is new from now on wait for a client; return where that begins."""
        listener.hold()
        self.listeners.add(listener)
        return self.standing.copy()

    def follow_logs(self, desk: Desk, ranks: Collection[int]) -> None:
        """Begin to read logs, from where they end now."""
        logs = self.logs or LogSource(desk.files(self.job), self.job)
        logs.look(ranks)
        self.standing.follow({**logs.ends(), **(self.standing.logs or {})})
        self.logs = logs

    def read_logs(self) -> list[Draft]:
        """Return new lines."""
        if self.logs is None or self.standing.logs is None:
            return []
        if time.monotonic() - self._looked > _LOGS_AGAIN:
            self._looked = time.monotonic()
            self.logs.look()
        return self.logs.news(self.standing.logs)

    def tell(self, drafts: Sequence[Draft]) -> None:
        """Send every client something that no database holds."""
        self.advance(written(drafts, self.standing), self.standing)

    def advance(self, messages: Sequence[Message], standing: Standing) -> None:
        """Send every client what is new, and note how far each is."""
        self.standing = standing
        packets: dict[str, Packet] = {}
        if messages:
            for listener in self.listeners:
                listener.hear(messages, packets)

    def wants(self, kind: str) -> bool:
        """Tell whether anybody listens to messages of a type."""
        return any(kind in listener.wish.types for listener in self.listeners)


def written(drafts: Sequence[Draft], standing: Standing) -> list[Message]:
    """Return drafts with the cursors of a reader who takes one after the other."""
    messages = []
    for draft in drafts:
        standing.move(draft)
        messages.append(Message(draft, text_frame(encoded(draft, standing.cursor()))))
    return messages
