"""The plane of this state folder that other hosts reach, where one serves them: `loom up --host`.

Hosts that share the folder, as those of a cluster share a home, find it by a file in there.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings

if TYPE_CHECKING:
    from torchloom.client.http import Client


def place() -> Path:
    """Return the file in which such a plane publishes how it is reached."""
    return settings.loom_home() / "plane" / "served.json"


def found() -> dict[str, Any] | None:
    """Return what it contains: `nats`, `authority`, `url`, `host`, `pid`; it may be gone since."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(place().read_bytes())
        if isinstance(found, dict) and found.get("nats"):
            return found
    return None


def announce(facts: Mapping[str, Any]) -> None:
    """Publish how this plane is reached, in a file that is replaced as a whole."""
    partial = place().with_name(f".served.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(dict(facts), file)
    partial.replace(place())


def withdraw(host: str, pid: int) -> None:
    """Take it back, if it is still this plane's."""
    card = found() or {}
    if (card.get("host"), card.get("pid")) == (host, pid):
        place().unlink(missing_ok=True)


def client() -> "Client | None":
    """Return that plane over HTTP, as the administrator whose folder this is."""
    card = found()
    if card is None or not str(card.get("url", "")).startswith("https:"):
        return None
    from torchloom.client import trust
    from torchloom.client.http import Client

    authority = Path(card["authority"]).read_text()
    token = (settings.loom_home() / "plane" / "admin.token").read_text().strip()
    return Client(card["url"], token, trust.fingerprint(authority), authority=authority)
