"""A link between two network namespaces for the recovery bench, and a plain stream over it.

Both namespaces are new and go with their processes: the machine's own network is left as it is.
"""

import ctypes
import os
import socket
import subprocess
import time
from pathlib import Path

_NEWNET = 0x40000000
_LINK = "loom0"
_HERE, _THERE = "10.77.0.1", "10.77.0.2"  # who stays, and the child
_PORT = 4777
_BUFFER = 128 << 10  # bytes; iperf's


def can_be() -> str:
    """Return why there can be no link here, or nothing."""
    if os.geteuid() != 0:
        return "two hosts on one machine take root"
    found = any(
        Path(folder, "ip").exists() for folder in ("/sbin", "/usr/sbin", "/bin", "/usr/bin")
    )
    return "" if found else "two hosts on one machine take `ip` (package iproute2)"


def pair() -> int:
    """Fork, with a link between the two: return 0 in the child, whose address is the second."""
    moved, away = os.pipe()
    linked, ready = os.pipe()
    _alone()
    child = os.fork()
    if child == 0:
        _alone()
        os.write(away, b".")
        os.read(linked, 1)
        _address(_THERE)
        return 0
    os.read(moved, 1)
    _ip("link", "add", _LINK, "type", "veth", "peer", "name", _LINK, "netns", str(child))
    _address(_HERE)
    os.write(ready, b".")
    return child


def send(size: int) -> None:
    """Be the child: send so many bytes to whoever asks for them."""
    part = memoryview(bytes(_BUFFER))
    with socket.create_server((_THERE, _PORT)) as door, door.accept()[0] as line:
        left = size
        while left:
            left -= line.send(part[: min(left, _BUFFER)])


def receive(size: int) -> float:
    """Read so many bytes from the child; return when the first could come."""
    part = memoryview(bytearray(_BUFFER))
    with _connected() as line:
        began, left = time.perf_counter(), size
        while left:
            left -= line.recv_into(part)
    return began


def _connected() -> socket.socket:
    while True:
        try:
            return socket.create_connection((_THERE, _PORT))
        except ConnectionRefusedError:
            time.sleep(0.001)


def _alone() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET):
        raise OSError(ctypes.get_errno(), "there can be no network of our own")


def _address(own: str) -> None:
    _ip("addr", "add", f"{own}/24", "dev", _LINK)
    _ip("link", "set", _LINK, "up")
    _ip("link", "set", "lo", "up")
    os.environ["GLOO_SOCKET_IFNAME"] = _LINK


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
