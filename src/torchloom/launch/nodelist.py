"""Expand the compressed host lists that Slurm writes, as `scontrol show hostnames` does."""

import re
from collections.abc import Iterator
from itertools import product

from torchloom.errors import UserError, shorten

MOST_HOSTS = 65_536  # a list that asks for more is a mistake, and would only fill the memory

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


class BadNodelist(UserError):
    """A host list that cannot be expanded."""

    code = "bad_nodelist"

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        super().__init__(
            f"cannot expand the host list {shorten(text)!r}: {why}; write it like `n[1-3,07],gpu5`"
        )


def expand(text: str) -> tuple[str, ...]:
    """Return every host of a list such as `n[1-3,07-09],gpu-[01-02]-[3,5]`, in Slurm's order."""
    hosts: list[str] = []
    for item in _items(text):
        for host in _expand_item(text, item):
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise BadNodelist(text, f"more than {MOST_HOSTS} hosts")
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Return the numbers behind `2(x3),1`, Slurm's form of per-node counts."""
    counts: list[int] = []
    for word in filter(None, text.split(",")):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", word.strip(), re.ASCII)
        if match is None:
            raise BadNodelist(text, f"{shorten(word)!r} is no count")
        counts += [int(match[1])] * min(int(match[2] or 1), MOST_HOSTS)
    return tuple(counts)


def _items(text: str) -> Iterator[str]:
    end = 0
    for match in _ITEM.finditer(text):
        if text[end : match.start()].strip(", \t\r\n"):
            break
        yield match[0]
        end = match.end()
    if text[end:].strip(", \t\r\n"):
        raise BadNodelist(text, "a bracket is not closed")


def _expand_item(text: str, item: str) -> Iterator[str]:
    parts = _PART.split(item)  # text, inside of a bracket, text, inside, ..., text
    texts, brackets = parts[::2], [_numbers(text, inside) for inside in parts[1::2]]
    if not brackets:
        yield item
        return
    # Slurm turns the last bracket fastest, then the first, the second, and so on.
    *outer, last = brackets
    for chosen in product(*reversed(outer), last):
        words = [*reversed(chosen[:-1]), chosen[-1]]
        yield texts[0] + "".join(word + after for word, after in zip(words, texts[1:], strict=True))


def _numbers(text: str, inside: str) -> list[str]:
    numbers: list[str] = []
    for word in inside.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise BadNodelist(text, f"{shorten(word)!r} is no number or range")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low >= MOST_HOSTS:
            raise BadNodelist(text, f"{shorten(word)!r} is no range of at most {MOST_HOSTS} hosts")
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers
