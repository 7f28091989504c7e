"""Names for new apps that nobody else has."""

import secrets

_LETTERS = "bcdfghjklmnpqrstvwxz"  # no vowels: no words
_ALPHABET = _LETTERS + "0123456789"
_LENGTH = 13


def random_id(length: int = _LENGTH) -> str:
    """Return random characters that any engine takes in a name; the first is a letter."""
    rest = (secrets.choice(_ALPHABET) for _ in range(length - 1))
    return secrets.choice(_LETTERS) + "".join(rest)


def make_unique(name: str, string_length: int = 0) -> str:
    """Return the name with random characters behind it."""
    return f"{name}-{random_id(string_length or _LENGTH)}"
