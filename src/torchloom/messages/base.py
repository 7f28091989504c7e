"""What every message begins with: the rank it is about, its incarnation and its generation."""

from typing import Any, TypeAlias

import msgspec

VERSION = 1
NO_RANK = -1  # of an agent or a launch process

Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sender, or the receiver: one incarnation of a rank, in one generation of its job."""

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
    """Return the string that names a message's kind on the wire; class names may differ."""
    return str(message.__struct_config__.tag)
