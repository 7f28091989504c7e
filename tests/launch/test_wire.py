"""Messages arrive whole, in order, each with its own descriptors, however the bytes came."""

import contextlib
import itertools
import json
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.launch.protocol import TO_KEEPER, decoding
from torchloom.launch.wire import Connection
from torchloom.unix import HEADER


class End:
    """One end of a connection, and what came in at it."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector) -> None:
        self.messages: list[Any] = []
        self.fds: list[list[int]] = []
        self.ended = 0
        self.connection = Connection(channel, selector, self._hear, self._end)

    def _hear(self, message: Any, fds: list[int]) -> None:
        self.messages.append(message)
        self.fds.append(fds)

    def _end(self) -> None:
        self.ended += 1


class Pair:
    """Two ends in one selector."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self.near, self.far = End(ours, self._selector), End(theirs, self._selector)

    def turn(self, until: Callable[[], object]) -> None:
        """Serve both ends until something is so."""
        while not until():
            ready = self._selector.select(10)
            assert ready, "nothing happens any more"
            for key, what in ready:
                key.data(what)

    def serve(self) -> None:
        """Take what is there."""
        for key, what in self._selector.select(0):
            key.data(what)

    def close(self) -> None:
        for end in (self.near, self.far):
            end.connection.close()
            for fd in (fd for fds in end.fds for fd in fds):
                os.close(fd)
        self._selector.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair(*socket.socketpair())
    yield found
    found.close()


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def frame(text: bytes, fds: int = 0) -> bytes:
    return HEADER.pack(len(text), fds) + text


def test_descriptors_arrive_with_the_message_they_were_sent_with(pair: Pair) -> None:
    pipes = [os.pipe() for _ in range(3)]
    read_ends = [read_end for read_end, _ in pipes]

    pair.near.connection.send({"n": 0})
    pair.near.connection.send({"n": 1}, read_ends[:2])
    pair.near.connection.send({"n": 2})
    pair.near.connection.send({"n": 3}, read_ends[2:])
    pair.turn(lambda: len(pair.far.messages) == 4)

    assert [message["n"] for message in pair.far.messages] == [0, 1, 2, 3]
    assert [len(fds) for fds in pair.far.fds] == [0, 2, 0, 1]
    arrived = [os.fstat(fd).st_ino for fds in pair.far.fds for fd in fds]
    assert arrived == [os.fstat(fd).st_ino for fd in read_ends]
    assert not any(os.get_inheritable(fd) for fds in pair.far.fds for fd in fds)
    for ends in pipes:
        for fd in ends:
            os.close(fd)


def test_a_host_full_of_ranks_fits_into_one_message(pair: Pair) -> None:
    with open(os.devnull) as null:
        pair.near.connection.send({"say": "hello"}, [null.fileno()] * 300)
        pair.near.connection.send({"say": "more"})
    pair.turn(lambda: len(pair.far.messages) == 2)

    assert [len(fds) for fds in pair.far.fds] == [300, 0]


def test_a_slow_reader_never_blocks_the_writer_and_misses_nothing(pair: Pair) -> None:
    text = "x" * 100_000
    read_end, write_end = os.pipe()

    for number in range(100):
        pair.near.connection.send({"n": number, "text": text}, [read_end] if number % 10 else [])
    before = list(pair.far.messages)
    pair.turn(lambda: len(pair.far.messages) == 100)

    assert before == []
    assert pair.far.messages == [{"n": number, "text": text} for number in range(100)]
    assert [len(fds) for fds in pair.far.fds] == [min(1, number % 10) for number in range(100)]
    os.close(read_end)
    os.close(write_end)


def test_the_end_comes_once_and_after_what_was_said(pair: Pair) -> None:
    for number in range(100):
        pair.near.connection.send({"n": number})
    pair.near.connection.close()
    pair.turn(lambda: pair.far.ended)

    assert pair.far.messages == [{"n": number} for number in range(100)]
    assert (pair.near.ended, pair.far.ended) == (0, 1)
    assert not pair.far.connection.is_open
    pair.far.connection.send({"to": "nobody"})


def test_finishing_sends_what_waits_while_the_other_end_reads() -> None:
    ours, theirs = socket.socketpair()
    near = End(ours, selectors.DefaultSelector())
    near.connection.send({"text": "x" * 1_000_000})
    received: list[bytes] = []
    with theirs:
        reader = threading.Thread(
            target=lambda: received.extend(iter(lambda: theirs.recv(999), b""))
        )
        reader.start()

        near.connection.finish(patience=30)
        reader.join()

    assert b"".join(received) == frame(b'{"text": "' + b"x" * 1_000_000 + b'"}')


def test_finishing_gives_up_on_one_who_does_not_read(pair: Pair) -> None:
    pair.near.connection.send({"text": "x" * 10_000_000})

    pair.near.connection.finish(patience=0.01)

    assert not pair.near.connection.is_open


@pytest.mark.parametrize("how", ["closed", "told_nobody", "garbled"])
def test_no_descriptor_stays_open_behind_a_connection(how: str) -> None:
    before = open_fds()
    pair = Pair(*socket.socketpair())
    with open(os.devnull) as null:
        pair.far.connection.send({}, [null.fileno()] * 3)
        pair.turn(lambda: pair.near.messages)
        pair.near.connection.send({"text": "x" * 10_000_000}, [null.fileno()])
        pair.near.connection.send({"n": 1}, [null.fileno()] * 70)
        if how == "told_nobody":
            pair.far.connection.channel.shutdown(socket.SHUT_RDWR)
            pair.turn(lambda: pair.near.ended)
        if how == "garbled":
            pair.far.connection.channel.send(b"\0" * 6)
            pair.turn(lambda: pair.near.ended)

    pair.close()

    assert open_fds() <= before  # others may have been closed meanwhile


@pytest.mark.parametrize(
    "said",
    [
        b"\0" * 64,
        frame(b"[]"),
        frame(b"nonsense"),
        frame(b"\xff\xfe"),
        frame(b"{}", fds=1),
        b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",
        struct.pack("!IH", 0xFFFFFFFF, 0),
    ],
)
@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_whoever_speaks_another_language_is_hung_up_on(said: bytes, family: int) -> None:
    pair = Pair(*_connected(family))

    pair.near.connection.send({"n": 1})
    pair.near.connection.channel.send(said)
    pair.turn(lambda: pair.far.ended)

    assert pair.far.messages == [{"n": 1}]
    assert pair.far.ended == 1
    pair.close()


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[]", b"null", b"\xff", b"{", b'{"do": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_message_ends_the_connection_and_nothing_else(pair: Pair, text: bytes) -> None:
    pair.near.connection.channel.sendall(frame(text))

    pair.turn(lambda: pair.far.ended)

    assert (pair.far.messages, pair.far.connection.is_open) == ([], False)


def test_descriptors_that_no_message_claims_end_the_connection_and_are_closed(pair: Pair) -> None:
    before = open_fds()
    with open(os.devnull) as null:
        for _ in range(5000 // 60):
            with contextlib.suppress(OSError):
                socket.send_fds(pair.near.connection.channel, [b"\0"], [null.fileno()] * 60)
            pair.serve()
    pair.turn(lambda: pair.far.ended)

    assert open_fds() < before


def test_a_receiver_that_does_not_understand_a_message_ends_its_connection(pair: Pair) -> None:
    before = open_fds()

    pair.far.connection._on_message = decoding(TO_KEEPER, lambda *_: None)
    with open(os.devnull) as null:
        pair.near.connection.send({"do": "bury", "id": True}, [null.fileno()] * 3)
        pair.turn(lambda: pair.far.ended)

    assert open_fds() < before


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text(max_size=30), min_size=1, max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=80), min_size=1, max_size=20),
    giving=st.lists(st.integers(min_value=0, max_value=3), min_size=8, max_size=8),
)
def test_messages_are_the_same_however_the_bytes_are_split(
    texts: list[str], cuts: list[int], giving: list[int]
) -> None:
    pair = Pair(*socket.socketpair())
    with open(os.devnull) as null:
        counts = giving[: len(texts)]
        for piece, fds in _pieces(texts, counts, cuts, null.fileno()):
            socket.send_fds(pair.near.connection.channel, [piece], fds)
            pair.serve()
    pair.turn(lambda: len(pair.far.messages) == len(texts))

    assert [message["text"] for message in pair.far.messages] == texts
    assert [len(fds) for fds in pair.far.fds] == counts
    pair.close()


def _pieces(
    texts: list[str], counts: list[int], cuts: list[int], fd: int
) -> Iterator[tuple[bytes, list[int]]]:
    sizes = itertools.cycle(cuts)
    for text, count in zip(texts, counts, strict=True):
        data, given = frame(json.dumps({"text": text}).encode(), count), [fd] * count
        while data:
            size = next(sizes)
            yield data[:size], given
            data, given = data[size:], []


def _connected(family: int) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]
