"""What a bus can do, whoever carries it: the contract of `memory` and `nats`.

A bus only carries. It delivers at most once, keeps nothing for those who come later, and nothing
that is said while it is cut off: whoever must not lose something keeps it until it is answered.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from torchloom.errors import Failure

Said: TypeAlias = tuple[str, bytes, str]  # subject, data, reply or ""
Handler: TypeAlias = Callable[[str, bytes, str], Awaitable[None]]  # the same three
Taker: TypeAlias = Callable[[list[Said]], None]
Listener: TypeAlias = Callable[[], None]


class BusLost(Failure):
    """The bus is cut off or closed: what was to be said was not."""

    code = "bus_lost"


class NobodyAnswers(Failure):
    """A request came back without an answer: nobody listens there, or not in time."""

    code = "nobody_answers"


class TooLong(Failure):
    """The bus carries no message of this length."""

    code = "too_long"


class Subscription(Protocol):
    """A handler that hears a subject until `end`."""

    async def end(self) -> None: ...


class Bus(Protocol):
    """Publish, ask, listen. Handlers of one subscription are called one after the other, in order;
    an error that one raises is counted in `failures` and ends nothing."""

    @property
    def connected(self) -> bool:
        """Tell whether what is published now has a chance to arrive."""
        ...

    @property
    def failures(self) -> int:
        """Return how many calls of handlers ended with an error."""
        ...

    @property
    def overruns(self) -> int:
        """Return how many messages were let go because their handlers were too slow."""
        ...

    def on_lost(self, listener: Listener) -> None:
        """Call the listener whenever the bus is cut off."""
        ...

    def on_back(self, listener: Listener) -> None:
        """Call the listener whenever the bus is there again; subscriptions still hold."""
        ...

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Say it. Raises BusLost when cut off and TooLong; neither waits nor buffers then."""
        ...

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        """Ask, and return the first answer. Raises NobodyAnswers, BusLost or TooLong."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Hear a subject; `*` is any one word of it, `>` all that follow."""
        ...

    async def collect(self, subject: str, taker: Taker) -> Subscription:
        """Hear a subject on which much is said: what came together is taken in together, in order.

        It may wait some milliseconds for more. What the taker raises is lost with what it was
        handed, and counts as one failure.
        """
        ...

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Come back when all that was published has left; raises BusLost when it cannot."""
        ...

    async def close(self) -> None:
        """Leave. Handlers are not called any more; closing twice is fine."""
        ...
