"""Unique names for new apps."""

import os

_LETTERS = "bcdfghjklmnpqrstvwxz"  # no vowels: no words
_ALPHABET = _LETTERS + "0123456789"
_LENGTH = 13


def random_id(length: int = _LENGTH) -> str:
    """Return random characters that any engine takes in a name; the first is a letter."""
    first, *rest = os.urandom(length)
    return _LETTERS[first % len(_LETTERS)] + "".join(_ALPHABET[b % len(_ALPHABET)] for b in rest)


def make_unique(name: str, string_length: int = 0) -> str:
    """Return the name with random characters behind it."""
    return f"{name}-{random_id(string_length or _LENGTH)}"
