"""Look at a beat as shallowly as will do: ten thousand come in a second, nearly all are well."""

import msgspec

from torchloom.bus.messages import VERSION
from torchloom.rules.verdict import STANDS


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rank's progress, of which only one thing is read."""

    head: msgspec.Raw
    step: int
    phase: int
    moved: float


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A head, of which only one thing is read."""

    version: int


class Glance(msgspec.Struct, frozen=True, array_like=True, tag="Beat", gc=False):
    """A beat, read so far."""

    head: Version
    agent: str
    sent: float
    progress: tuple[Moved, ...] = ()


_DECODER = msgspec.msgpack.Decoder(Glance)


def glance(data: bytes) -> tuple[str, bool] | None:
    """Return whose beat it is and whether a rank stands still; nothing for what is no beat."""
    try:
        seen: Glance = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if seen.head.version != VERSION:
        return None
    for each in seen.progress:
        if each.moved > STANDS:
            return seen.agent, True
    return seen.agent, False
