"""Tell this user's weaver, if there is one, that a run's folder has news.

The folder is complete without it: a weaver that was not there reads it when it comes.
"""

import contextlib
import socket

from torchloom import settings
from torchloom.unix import reachable

POKES = "pokes"  # in the folder of the plane's sockets


def poke(app_id: str) -> None:
    """Say which run has news; never waits."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller,
        reachable(settings.plane_dir() / POKES) as address,
    ):
        teller.setblocking(False)
        teller.sendto(app_id.encode(), address)
