"""Read run options from text: `queue=gpu,tags=a;b,name="x, y"`."""

import re
from collections.abc import Iterator

from torchloom.errors import shorten
from torchloom.specs.exceptions import InvalidRunConfigValue

QUOTED = r"""(['"])(?:\\.|(?!\1).)*?\1"""
TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})


class cases:
    """The two ways to write a name of several words."""

    @staticmethod
    def snake_to_camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(word.title() for word in rest)

    @staticmethod
    def camel_to_snake(name: str) -> str:
        return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def read_pairs(text: str) -> dict[str, str]:
    """Return the `key=value` pairs of a text.

    Pairs are parted by `,` or `;`, which may also stand inside a value: the last one before the
    next `=` ends the value. What stands in quotes is taken as it is.
    """
    if not text:
        return {}
    mask = re.sub(QUOTED, lambda quoted: "x" * len(quoted.group()), text)
    spans = list(_spans(text, mask))
    if len(spans) < 2:
        raise InvalidRunConfigValue(f"{shorten(text)!r} is not of the form key=value", "", {})
    pairs: dict[str, str] = {}
    begin, end = spans[0]
    key = text[begin:end]
    for begin, end in spans[1:-1]:
        cut = max(mask.rfind(",", begin, end), mask.rfind(";", begin, end))
        if cut <= begin or cut == end - 1:
            raise InvalidRunConfigValue(_no_cut(text[begin:end]), key, pairs)
        pairs[key] = _unquoted(text[begin:cut].strip())
        key = text[cut + 1 : end].strip()
    begin, end = spans[-1]
    return {**pairs, key: _unquoted(text[begin:end])}


def read_list(text: str) -> list[str]:
    """Return the items, parted by `,` or `;`; empty ones do not count."""
    return [item for item in text.replace(";", ",").split(",") if item]


def read_map(text: str) -> dict[str, str]:
    """Return `k:v` items as a mapping; `=` already parts the options themselves."""
    pairs = [item.partition(":") for item in read_list(text)]
    for key, colon, _ in pairs:
        if not colon:
            raise ValueError(f"{shorten(key)!r} is not of the form key:value")
    return {key: value for key, _, value in pairs}


def read_bool(text: str) -> bool:
    """Return what a config file means by true, 1, yes, on and false, 0, no, off."""
    word = text.lower()
    if word not in TRUE | FALSE:
        raise ValueError(f"{shorten(text)!r} is neither true/1/yes/on nor false/0/no/off")
    return word in TRUE


def _spans(text: str, mask: str) -> Iterator[tuple[int, int]]:
    """Yield where the non-empty parts between `=` begin and end, without blanks around them."""
    begin = 0
    for part in mask.split("="):
        end = begin + len(part)
        piece = text[begin:end]
        if piece.strip():
            left = begin + len(piece) - len(piece.lstrip())
            yield left, left + len(piece.strip())
        begin = end + 1


def _no_cut(piece: str) -> str:
    return f"{shorten(piece)!r} should be a value, a ',' or ';', and the next key before its '='"


def _unquoted(value: str) -> str:
    return value[1:-1] if re.fullmatch(QUOTED, value) else value
