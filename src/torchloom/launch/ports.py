"""Free ports of this host."""

import socket
from collections.abc import Mapping

from torchloom.settings import LOOPBACK


def free_port() -> int:
    """Return a port that nobody uses at this instant."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def settle(wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the ports a replica is told: 0 becomes any free one, others are the role's word."""
    return {name: port or free_port() for name, port in wanted.items()}
