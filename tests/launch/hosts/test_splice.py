"""Two sockets that are joined carry everything both ways, and end together."""

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from torchloom.launch.hosts.tunnels import Splice

MANY = 8 << 20  # bytes: more than kernel and splice take together


class Joined:
    """Two outer ends with a splice between their inner ones, driven by the test."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.left, inner = socket.socketpair()
        self.right, other = socket.socketpair()
        self.ended: list[Splice] = []
        self.splice = Splice(self.selector, inner, other, self.ended.append)

    def turn(self, longest: float = 0.01) -> None:
        for key, ready in self.selector.select(longest):
            key.data(ready)

    def close(self) -> None:
        self.splice.close()
        for end in (self.left, self.right):
            end.close()
        self.selector.close()


@pytest.fixture
def joined() -> Iterator[Joined]:
    joined = Joined()
    yield joined
    joined.close()


def test_much_that_is_said_at_once_both_ways_arrives_whole(joined: Joined) -> None:
    said = {joined.left: b"a" * MANY, joined.right: b"b" * MANY}
    heard: dict[socket.socket, bytes] = {}

    def hear(end: socket.socket) -> None:
        heard[end] = end.recv(MANY, socket.MSG_WAITALL)

    acts = [threading.Thread(target=end.sendall, args=(data,)) for end, data in said.items()]
    acts += [threading.Thread(target=hear, args=(end,)) for end in said]
    for act in acts:
        act.start()
    while any(act.is_alive() for act in acts):
        joined.turn()

    assert heard == {joined.left: b"b" * MANY, joined.right: b"a" * MANY}


def test_who_is_not_read_from_is_told_to_wait(joined: Joined) -> None:
    joined.left.setblocking(False)
    sent = 0
    for _ in range(1000):
        try:
            sent += joined.left.send(b"a" * (1 << 16))
        except BlockingIOError:
            joined.turn(0)

    assert sent < MANY
    joined.right.settimeout(0.1)
    got = 0
    while got < sent:
        got += len(joined.right.recv(1 << 20))
        joined.turn(0)
    assert got == sent


@pytest.mark.parametrize("who", ["left", "right"])
def test_when_one_hangs_up_so_does_the_other(joined: Joined, who: str) -> None:
    gone, there = (joined.left, joined.right) if who == "left" else (joined.right, joined.left)

    gone.close()
    joined.turn(1)

    assert there.recv(1) == b""
    assert joined.ended == [joined.splice]
    assert not joined.selector.get_map()


def test_both_may_hang_up_in_one_moment(joined: Joined) -> None:
    joined.left.close()
    joined.right.close()

    joined.turn(1)

    assert joined.ended == [joined.splice]
