"""From the text behind a flag to its value; an error names the flag, the text and the remedy."""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torchloom.errors import UserError, shorten

NAMED = ("auto", "gpu", "cpu", "xpu")  # numbers of ranks that a host knows itself
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", re.ASCII)
_RANKS = re.compile(r"\d+(,\d+)*", re.ASCII)
# What `rules.response` understands; spelled here, since a launch must start fast.
RECOVERIES = ("live", "restart", "shrink", "fail")
ON_LOSS = ("notify", "restart", "fail")


Convert = Callable[[str, str], object]  # (the flag as it was written, the text) -> the value
Count = int | str  # a number, or one of NAMED


class BadFlagValue(UserError):
    """A flag was given something it cannot use."""

    code = "bad_value"

    def __init__(self, flag: str, text: str, remedy: str) -> None:
        self.flag = flag
        super().__init__(f"{flag} {shorten(text)!r}: {remedy}")


class NodeCount(NamedTuple):
    """How many hosts: at least, at most."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


class Streams(NamedTuple):
    """Which outputs are meant: bit 1 stdout, bit 2 stderr; for all local ranks or each its own."""

    all: int = 0
    each: tuple[tuple[int, int], ...] = ()

    def of(self, local_rank: int) -> int:
        """Return what is meant for one rank of a host; a rank that is not named has nothing."""
        return dict(self.each).get(local_rank, 0) if self.each else self.all


NO_STREAMS = Streams()


def text(_flag: str, said: str) -> str:
    """Take it as it is."""
    return said


def count(flag: str, said: str) -> Count:
    """Read a number of ranks."""
    if said in NAMED:
        return said
    if not _is_number(said) or int(said) == 0:
        raise BadFlagValue(flag, said, "write a number from 1, gpu, cpu or auto")
    return int(said)


def nodes(flag: str, said: str) -> NodeCount:
    """Read `N` or `MIN:MAX`."""
    parts = said.split(":")
    if len(parts) > 2 or not all(_is_number(part) and int(part) for part in parts):
        raise BadFlagValue(
            flag, said, f"write a number of hosts from 1, or MIN:MAX as in {flag} 2:4"
        )
    least, most = int(parts[0]), int(parts[-1])
    if least > most:
        raise BadFlagValue(flag, said, f"the minimum comes first; write {flag} {most}:{least}")
    return NodeCount(least, most)


def whole(least: int = 0, most: int | None = None) -> Convert:
    """Return a reader of whole numbers in a range."""

    def read(flag: str, said: str) -> int:
        if not _is_number(said) or int(said) < least or (most is not None and int(said) > most):
            up_to = "" if most is None else f" to {most}"
            raise BadFlagValue(flag, said, f"write a whole number from {least}{up_to}")
        return int(said)

    return read


def spares(flag: str, said: str) -> int | None:
    """Read how many hosts are held back; `auto` is what no replica needs."""
    if said == "auto":
        return None
    if not _is_number(said):
        raise BadFlagValue(flag, said, "write a number of hosts from 0, or auto")
    return int(said)


def seconds(flag: str, said: str) -> float | None:
    """Read a duration; 0 means that there is no limit."""
    try:
        value = float(said)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadFlagValue(flag, said, "write seconds, as in 600; 0 is no limit")
    return value or None


def streams(flag: str, said: str) -> Streams:
    """Read torchrun's `3` or `0:1,1:3`."""
    if not _STREAMS.fullmatch(said):
        remedy = "write 0 none, 1 stdout, 2 stderr or 3 both, or by local rank as in 0:1,1:3"
        raise BadFlagValue(flag, said, remedy)
    if ":" not in said:
        return Streams(int(said))
    pairs = (part.split(":") for part in said.split(","))
    return Streams(each=tuple({int(rank): int(which) for rank, which in pairs}.items()))


def ranks(flag: str, said: str) -> tuple[int, ...]:
    """Read local ranks."""
    if said and not _RANKS.fullmatch(said):
        raise BadFlagValue(flag, said, "write local ranks with commas, as in 0,1")
    return tuple(int(part) for part in said.split(",")) if said else ()


def pairs(flag: str, said: str) -> tuple[tuple[str, str], ...]:
    """Read `k=v,k=v`; a key that comes again counts as it was said last."""
    if not said.strip():
        return ()
    found: dict[str, str] = {}
    for part in said.split(","):
        key, _, value = (side.strip() for side in part.partition("="))
        if not key or not value:
            raise BadFlagValue(flag, said, "write K=V,K=V as in timeout=60,join_timeout=600")
        found[key] = value
    return tuple(found.items())


def one_of(*choices: str) -> Convert:
    """Return a reader of one word among some."""

    def read(flag: str, said: str) -> str:
        if said not in choices:
            raise BadFlagValue(flag, said, f"write {', '.join(choices[:-1])} or {choices[-1]}")
        return said

    return read


def switch(flag: str, said: str) -> bool:
    """Read a variable that stands for a flag without a value."""
    if not _is_number(said):
        raise BadFlagValue(flag, said, "write 1 or 0")
    return bool(int(said))


def _is_number(said: str) -> bool:
    return said.isascii() and said.isdigit() and len(said) < 10


PolicyFields = Mapping[str, str | int]  # by name of a field of `rules.response.Policy`


def policy(flag: str, said: str) -> str:
    """Read a policy and return it as it was written; what makes no sense is refused."""
    parse_policy(said, flag)
    return said


def parse_policy(said: str, flag: str = "policy") -> PolicyFields:
    """Return what a written policy asks for."""
    found: dict[str, str | int] = {}
    for word in filter(None, (part.strip() for part in said.split(","))):
        name, value = _wish(word, flag)
        if name in found:
            raise BadFlagValue(flag, said, f"{word!r} is unexpected")
        found[name] = value
    if "min_groups" in found and found.get("recovery") != "shrink":
        raise BadFlagValue(flag, said, "min=N needs shrink")
    return found


def in_words(policy: PolicyFields) -> str:
    """Return a policy as one writes it."""
    names = {"recovery": "", "min_groups": "min=", "on_loss": "nan="}
    return ",".join(f"{names[name]}{policy[name]}" for name in names if name in policy)


def _wish(word: str, flag: str) -> tuple[str, str | int]:
    name, equals, value = word.partition("=")
    if not equals and name in RECOVERIES:
        return "recovery", name
    if name == "nan" and value in ON_LOSS:
        return "on_loss", value
    if name == "min" and value.isascii() and value.isdecimal() and 0 < int(value) < 1 << 31:
        return "min_groups", int(value)
    raise BadFlagValue(
        flag, word, f"write one of {', '.join(RECOVERIES)}, and nan={'|'.join(ON_LOSS)}, min=N"
    )
