"""Whose process listens at a port of this host: anybody may take one and pose as a server."""

import os
import sys
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_FIRST_PERSON = 1000  # user ids below it are the system's own


def listens(port: int) -> bool:
    """Tell whether anybody listens at this port, as far as the kernel shows."""
    return bool(_owners(port))


def trustworthy(port: int) -> bool:
    """Tell whether all who listen at this port are us or the system; where nobody can tell, yes."""
    owners = _owners(port)
    if not owners:
        return sys.platform != "linux"
    return all(uid == os.getuid() or uid < _FIRST_PERSON for uid in owners)


def _owners(port: int) -> set[int]:
    owners = set()
    for table in _TABLES:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                owners.add(int(words[7]))
    return owners
