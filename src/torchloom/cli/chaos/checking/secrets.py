"""Whether a secret of the plane stands where anybody may read it: in a log, an event, a record."""

import re
from collections.abc import Iterator
from pathlib import Path

from torchloom.cli.chaos.checking.case import Case

_SEED = re.compile(rb"S[UAO][A-Z2-7]{56}")  # of a key of NATS
_FAILED = re.compile(rb"\b500 Internal Server Error\b")
_SHORTEST = 12  # letters of what is worth looking for
_LARGEST = 64 << 20  # bytes of a file that are looked through


def leaks(case: Case) -> tuple[str, ...]:
    """Return where a secret was found, and where the server says that it broke."""
    secrets = _secrets(case.home / "plane")
    found = []
    for path in _texts(case):
        with path.open("rb") as file:
            text = file.read(_LARGEST)
        if _SEED.search(text) or any(secret in text for secret in secrets):
            found.append(f"a secret is in {path.relative_to(case.home)}")
        if path.parent.name == "logs" and _FAILED.search(text):
            found.append(f"an answer was 500, by {path.name}")
    return tuple(found)


def _secrets(plane: Path) -> set[bytes]:
    words: set[bytes] = set()
    for path in (plane / "admin.token", *(plane / "keys").glob("*.token")):
        if path.is_file():
            words.update(path.read_bytes().split())
    return {word for word in words if len(word) >= _SHORTEST}


def _texts(case: Case) -> Iterator[Path]:
    """Yield what people and programs read: logs, events, records; not the folder of keys."""
    found = [*(case.home / "plane" / "logs").rglob("*"), *(case.run / "logs").rglob("*")]
    for path in (*found, *case.run.glob("*.json*"), *case.run.glob("*.log")):
        if path.is_file() and path.is_relative_to(case.home):
            yield path
