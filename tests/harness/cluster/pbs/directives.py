"""Directives in a script: which lines count, and how one is parted into words."""

from collections.abc import Iterator

from ..batch.command import Refused
from .words import not_done

LONGEST = 4095  # characters; PBS takes what is behind them for the next line


def directives(script: str, prefix: str) -> Iterator[list[str]]:
    """Yield the words of each directive, until the first line that would be executed."""
    lines = iter(script.splitlines())
    for line in lines:
        bare = line.lstrip()
        if prefix and bare.startswith(prefix):
            text = bare[len(prefix) :]
            while text.endswith("\\"):
                following = next(lines, None)
                if following is None:
                    text = "qsub: unexpected end-of-file or read error in script\n"
                    raise Refused(text, 1)
                text = text[:-1] + following
            if len(text) > LONGEST:
                raise not_done("qsub", f"a directive of more than {LONGEST} characters")
            yield words(text)
        elif bare and bare[0] not in "#:":
            return


def words(line: str) -> list[str]:
    """Part a directive: quotes of both kinds, a backslash for one character."""
    found: list[str] = []
    word: str | None = None
    quote = ""
    letters = iter(line)
    for letter in letters:
        if quote:
            if letter == quote:
                quote = ""
            else:
                word = (word or "") + letter
        elif letter in "\"'":
            quote, word = letter, word or ""
        elif letter == "\\":
            word = (word or "") + next(letters, "")
        elif letter.isspace():
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + letter
    if quote:
        raise Refused(f"qsub: unmatched {quote}\n", 1)
    return found if word is None else [*found, word]
