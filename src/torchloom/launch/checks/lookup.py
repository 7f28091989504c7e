"""Ask the name service without being held up by it: a lost answer costs five seconds or more."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Sequence


def addresses(hosts: Sequence[str], limit: float) -> dict[str, list[str]]:
    """Return the addresses of each host, asked for all at once; those unanswered are left out."""
    answers: dict[str, list[str]] = {}

    def look(host: str) -> Callable[[], None]:
        return lambda: answers.update({host: _resolve(host)})

    _all_within(limit, [look(host) for host in hosts])
    return dict(answers)


def reverse_seconds(address: str, limit: float) -> float | None:
    """Return how long the name of an address takes, whatever it is; nothing beyond the limit."""
    started = time.monotonic()
    took: list[float] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            socket.getnameinfo((address, 0), 0)
        took.append(time.monotonic() - started)

    _all_within(limit, [look])
    return took[0] if took else None


def own_address(own_host: str, limit: float) -> str | None:
    """Return the address that peers would use; nothing when there is only the loopback."""
    found = [*addresses([own_host], limit).get(own_host, []), *_routed()]
    return next((each for each in found if not ipaddress.ip_address(each).is_loopback), None)


def _all_within(limit: float, looks: Sequence[Callable[[], None]]) -> None:
    """Do all side by side; what takes longer goes on unheard, and ends with this process."""
    deadline = time.monotonic() + limit
    threads = [threading.Thread(target=look, daemon=True) for look in looks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]


def _routed() -> list[str]:
    """Return the address from which packets would leave; a datagram's connect sends none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documentation, RFC 5737
        except OSError:
            return []
        return [probe.getsockname()[0]]
