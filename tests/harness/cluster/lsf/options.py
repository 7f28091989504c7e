"""LSF's options: whole words behind one dash, and a word for the value."""

from collections.abc import Collection

from ..batch.command import Refused
from .words import FAILED


def names(text: str) -> frozenset[str]:
    """Return options that are listed with blanks between them."""
    return frozenset(text.split())


def part(
    program: str, words: list[str], flags: Collection[str], valued: Collection[str], usage: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """Part words in options and operands; the first word without a dash ends the options."""
    found, rest = [], list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        name = rest.pop(0)[1:]
        if name in valued:
            if not rest:
                text = f"{program}: option requires an argument -- {name}\n{usage}"
                raise Refused(text, FAILED)
            found.append((name, rest.pop(0)))
        elif name in flags:
            found.append((name, ""))
        else:
            raise Refused(f"{program}: illegal option -- {name}\n{usage}", FAILED)
    return found, rest
