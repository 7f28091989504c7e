"""getopt of the C library: its grammar, and its words for what is no option."""

from collections.abc import Sequence
from dataclasses import dataclass


class BadOption(Exception):
    """An option that does not exist or lacks its value; the text is the C library's."""


@dataclass(frozen=True)
class Parsed:
    """Options in their order, operands, and whether `--` stood between them."""

    options: list[tuple[str, str]]
    operands: list[str]
    dashes: bool = False


def getopt(program: str, words: Sequence[str], known: str) -> Parsed:
    """Part the words in options and operands; the first operand ends the options, as does `--`."""
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            return Parsed(found, rest, dashes=True)
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            at = known.find(letter)
            if at < 0 or letter == ":":
                raise BadOption(f"{program}: invalid option -- '{letter}'")
            if known[at + 1 : at + 2] != ":":
                found.append((letter, ""))
                continue
            if not letters and not rest:
                raise BadOption(f"{program}: option requires an argument -- '{letter}'")
            found.append((letter, letters or rest.pop(0)))
            letters = ""
    return Parsed(found, rest)
