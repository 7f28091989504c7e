"""What whoever starts a plane, or finds one, wants of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom.errors import UserError, shorten
from torchloom.settings import LOOPBACK
from torchloom.weaver.plane.credentials import WEAVER
from torchloom.weaver.plane.parts import AGENT, NAMES, NATS

_ALONE = (NATS, WEAVER, AGENT)  # what can be had without the rest


@dataclass(frozen=True, slots=True)
class Wishes:
    """`pinned`: stay, job or none. `only`: one part. `host`: listen at this address of ours.

    `served`: start the HTTP server at once, and be up when it answers.
    """

    pinned: bool = False
    only: str = ""
    host: str = ""
    served: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that are wanted."""
        return (self.only,) if self.only else NAMES

    @property
    def address(self) -> str:
        return self.host or LOOPBACK

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Wishes":
        """Return the wishes that a question carries; what it does not know is ignored."""
        only, host = str(facts.get("only") or ""), str(facts.get("host") or "")
        if only and only not in _ALONE:
            raise UserError(f"no part {shorten(only)!r} to start alone; {' or '.join(_ALONE)} is")
        return cls(facts.get("pinned") is True, only, host, facts.get("served") is True)

    @classmethod
    def read(cls, words: Sequence[str]) -> "Wishes":
        """Return the wishes of a command line: `--pinned`, `--served`, `--only=PART`, ..."""
        pairs = (word.removeprefix("--").partition("=") for word in words)
        return cls.of({name: value if equals else True for name, equals, value in pairs})
