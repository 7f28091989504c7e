"""However a server's words are cut into reads, the same is heard; what is none is refused."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchloom.bus.api import RawMessage
from torchloom.bus.nats.connection import NoProtocol, Parser

NOBODY = b"NATS/1.0 503\r\n\r\n"
DATA = st.binary(max_size=40) | st.sampled_from(
    [b"\r\n", b"MSG a 1 3\r\n", b"PING\r\n", bytes(5000)]
)
WORD = st.text("abcXYZ019_-.", min_size=1, max_size=12)

Heard = tuple[dict[bytes, list[RawMessage]], list[str], list[bytes]]


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, str, Any]:
    """Return what a server says, of which kind it is, and what it means."""
    kind = draw(st.sampled_from(["plain", "headers", "nobody", "word"]))
    subject, reply, data = draw(WORD), draw(WORD | st.just("")), draw(DATA)
    sid = b"%d" % draw(st.integers(1, 3))
    to = b" ".join(each for each in (subject.encode(), sid, reply.encode()) if each)
    if kind == "plain":
        return b"MSG %b %d\r\n%b\r\n" % (to, len(data), data), sid.decode(), (subject, data, reply)
    if kind == "headers":
        head = b"NATS/1.0\r\nKey: value\r\n\r\n"
        sizes = b"%d %d" % (len(head), len(head) + len(data))
        said = b"HMSG %b %b\r\n%b%b\r\n" % (to, sizes, head, data)
        return said, sid.decode(), (subject, data, reply)
    if kind == "nobody":
        size = len(NOBODY)
        return b"HMSG %b %d %d\r\n%b\r\n" % (to, size, size, NOBODY), "nobody", subject
    word = draw(st.sampled_from([b"PING", b"PONG", b"+OK", b"-ERR 'no'", b'INFO {"a":1}']))
    return word + b"\r\n", "word", word


def heard_in(reads: list[bytes]) -> Heard:
    """Return all that a parser makes of these reads."""
    parser, all_of_it = Parser(), ({}, [], [])
    for read in reads:
        heard = parser.feed(read)
        for sid, said in heard.messages.items():
            all_of_it[0].setdefault(sid, []).extend(said)
        all_of_it[1].extend(heard.unanswerable)
        all_of_it[2].extend(heard.lines)
    return all_of_it


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(st.lists(messages(), max_size=12), st.lists(st.integers(1, 400), max_size=40))
def test_however_it_is_cut_the_same_is_heard(
    said: list[tuple[bytes, str, Any]], cuts: list[int]
) -> None:
    stream, reads, at = b"".join(words for words, _, _ in said), [], 0
    for cut in cuts:
        reads.append(stream[at : at + cut])
        at += cut
    reads.append(stream[at:])
    expected: Heard = ({}, [], [])
    for _, where, meaning in said:
        if where == "nobody":
            expected[1].append(meaning)
        elif where == "word":
            expected[2].append(meaning)
        else:
            expected[0].setdefault(where.encode(), []).append(meaning)

    assert heard_in(reads) == expected


@pytest.mark.parametrize(
    "said",
    [
        b"MSG a 1 -5\r\n",
        b"MSG a 1 many\r\n",
        b"MSG 3\r\nabc\r\n",
        b"MSG a 1 99999999999\r\n",
        b"HMSG a 1 9 5\r\nabcdefghi\r\n",
        b"MSG \xff 1 0\r\n\r\n",
        bytes((1 << 20) + 1),
    ],
)
def test_what_no_server_says_is_refused(said: bytes) -> None:
    with pytest.raises(NoProtocol):
        Parser().feed(said)


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"MSG ", b"\r\n"])
@example([b"HMSG 1 2\r\n"])
def test_whatever_comes_it_is_heard_or_refused(reads: list[bytes]) -> None:
    parser = Parser()
    try:
        for read in reads:
            parser.feed(read)
    except NoProtocol:
        pass


def test_a_long_message_in_many_reads_is_looked_at_once_it_is_there() -> None:
    data = bytes(1 << 20)
    stream = b"MSG a 1 %d\r\n%b\r\n" % (len(data), data)
    reads = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]

    assert heard_in(reads) == ({b"1": [("a", data, "")]}, [], [])
