"""The contract of a bus, which `memory` and `nats` fulfil.

A bus delivers a message at most once. It keeps nothing for later subscribers, and nothing that is
published while it is disconnected: a sender that must not lose a message keeps it until the reply.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from torchloom.errors import Failure

RawMessage: TypeAlias = tuple[str, bytes, str]  # subject, data, reply or ""
Handler: TypeAlias = Callable[[str, bytes, str], Awaitable[None]]  # the same three
Taker: TypeAlias = Callable[[list[RawMessage]], None]
Listener: TypeAlias = Callable[[], None]


class BusLost(Failure):
    """The bus is disconnected or closed: nothing was published."""

    code = "bus_lost"


class NoReply(Failure):
    """A request has no reply: the subject has no subscriber, or none replied in time."""

    code = "nobody_answers"


class TooLong(Failure):
    """The bus carries no message of this length."""

    code = "too_long"


class Subscription(Protocol):
    """A handler that receives the messages of a subject until `end`."""

    async def end(self) -> None: ...


class Bus(Protocol):
    """Publish, request, subscribe.

    The handler of a subscription is called for one message after the other, in order. An error that
    it raises is counted in `failures`, and the next message is handled.
    """

    @property
    def connected(self) -> bool:
        """Return whether what is published now can arrive."""
        ...

    @property
    def failures(self) -> int:
        """Return how many calls of handlers ended with an error."""
        ...

    @property
    def overruns(self) -> int:
        """Return how many messages were dropped because their handlers were too slow."""
        ...

    def on_lost(self, listener: Listener) -> None:
        """Call the listener whenever the bus is disconnected."""
        ...

    def on_back(self, listener: Listener) -> None:
        """Call the listener whenever the bus is connected again; subscriptions still hold."""
        ...

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish. Raises BusLost when disconnected, and TooLong, without waiting or buffering."""
        ...

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        """Return the first reply to a request. Raises NoReply, BusLost or TooLong."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Subscribe to a subject; `*` matches one token of it, `>` all that follow."""
        ...

    async def collect(self, subject: str, taker: Taker) -> Subscription:
        """Subscribe to a busy subject: messages that arrive together are handled together.

        They are in order, and may wait some milliseconds for more. When the taker raises, what it
        was handed is lost and counts as one failure.
        """
        ...

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Return when all that was published has left; raises BusLost when it cannot."""
        ...

    async def close(self) -> None:
        """Close. Handlers are not called any more; closing twice has no effect."""
        ...
