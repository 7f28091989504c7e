"""What every message begins with: of whom it speaks, in which life and membership."""

from typing import Any, TypeAlias

import msgspec

VERSION = 1
NO_RANK = -1  # an agent or a launch process speaks for itself

Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who speaks, or who is spoken to: one life of one rank, in one membership of its job."""

    version: int
    job: str
    generation: int
    rank: int
    incarnation: str
    role: str = ""  # ranks of different roles may have one number


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=False):
    """Anything that is sent. Each kind states its `tag`, which the wire and the database hold."""

    head: Head


def tag_of(message: Message) -> str:
    """Return the string that names a message's kind on the wire, whatever its class is called."""
    return str(message.__struct_config__.tag)
