"""A bus whose server's address, or whose opinion of us, shows only when one asks somebody else.

The user's key is made here, by whoever connects: what is signed for it elsewhere is no secret, and
what is secret is never sent.
"""

import os
from collections.abc import Awaitable, Callable

import nkeys

from torchloom.bus.caller import Caller
from torchloom.bus.line import Line
from torchloom.bus.nats import NatsBus
from torchloom.errors import Failure

Find = Callable[[], Awaitable[Caller]]


class NoWay(Failure):
    """Whoever knows where the server is does not say so."""

    code = "no_way"


class FoundBus(NatsBus):
    """A bus that asks before each connection how to make it; whoever is asked may raise NoWay."""

    def __init__(self, find: Find, inbox: str) -> None:
        super().__init__("nats://not-found-yet", inbox=inbox)
        self._find = find

    async def _connect(self) -> Line | None:
        try:
            self._caller = await self._find()
        except NoWay as error:
            self._complained(str(error))
            return None
        return await super()._connect()


def new_key() -> tuple[str, str]:
    """Return a new key of a user: its seed, which stays here, and its public half."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return seed.decode(), public.decode()
