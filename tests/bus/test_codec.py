import struct
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.bus.codec import (
    LONGEST,
    LONGEST_FRAME,
    Frames,
    Garbled,
    MessageReader,
    decode,
    encode,
    frame,
)
from torchloom.messages import plane as m

from ..harness.message_samples import FROM_RANK, HEAD, REGISTER, UNIONS, missing

SAMPLES = [(message, union) for union, said in UNIONS.items() for message in said]


def test_every_kind_of_message_has_a_sample() -> None:
    assert missing() == {str(union): set() for union in UNIONS}


@pytest.mark.parametrize(("message", "union"), SAMPLES)
def test_a_message_comes_back_as_it_was(message: m.Message, union: object) -> None:
    assert decode(encode(message), union) == message
    assert decode(encode(message), type(message)) == message


def test_fields_that_a_newer_torchloom_appended_are_ignored() -> None:
    parts = msgspec.msgpack.decode(encode(m.Goodbye(HEAD, 10)))
    parts[1].append("new in the head")

    newer = msgspec.msgpack.encode([*parts, "new", {"and": "newer"}])

    assert decode(newer, m.FromRank) == m.Goodbye(HEAD, 10)


def test_fields_that_an_older_torchloom_lacks_have_their_defaults() -> None:
    parts = msgspec.msgpack.decode(encode(REGISTER))

    older = decode(msgspec.msgpack.encode(parts[:10]), m.Register)  # its name, and up to boundary

    assert older == msgspec.structs.replace(REGISTER, knobs=(), world_size=0, page="")


def why(data: bytes, union: object = m.FromRank) -> str:
    with pytest.raises(Garbled) as caught:
        decode(data, union)
    return caught.value.why


def test_each_kind_of_garbage_has_its_word() -> None:
    other_version = msgspec.structs.replace(HEAD, version=2)
    unknown = msgspec.msgpack.encode(["Surprise", list(msgspec.structs.astuple(HEAD))])

    assert why(encode(m.Goodbye(other_version, 1))) == "version"
    assert why(bytes(LONGEST + 1)) == "oversized"
    assert why(unknown) == "malformed"
    assert why(encode(m.Stored(HEAD, 1, 1))) == "malformed"  # it is no rank's to say
    assert why(encode(m.Goodbye(HEAD, 1))[:-1]) == "malformed"
    assert why(b"") == "malformed"
    assert why(b"\x91" * 100_000 + b"\x00") == "malformed"  # nested deeper than a stack


def test_a_reader_counts_what_it_drops_and_reads_on() -> None:
    reader = MessageReader[m.Message](m.FromRank)
    other = encode(m.Goodbye(msgspec.structs.replace(HEAD, version=9), 1))

    read = [reader.read(data) for data in (b"x", other, encode(REGISTER), bytes(LONGEST + 1))]
    reader.drop("foreign_job")

    assert read == [None, None, REGISTER, None]
    assert reader.dropped == {"malformed": 1, "version": 1, "oversized": 1, "foreign_job": 1}


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_garbled(data: bytes) -> None:
    reader = MessageReader[m.Message](m.FromRank)

    message = reader.read(data)

    assert (message is None) == bool(reader.dropped)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=500)
def test_a_mutated_message_is_dropped_or_still_one_of_its_kind(
    sample: tuple[m.Message, object], data: st.DataObject
) -> None:
    message, union = sample
    whole = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "repeat"])):
            case "flip":
                whole[place] = data.draw(st.integers(0, 255))
            case "cut":
                whole = whole[: place + 1]
            case "repeat":
                whole = whole[:place] + whole[place:] + whole[place:]
    reader = MessageReader[m.Message](union)

    read = reader.read(bytes(whole))

    assert (read is None) == bool(reader.dropped)
    assert read is None or read.head.version == m.VERSION


@given(st.lists(st.integers(1, 200), max_size=30))
def test_frames_are_found_however_the_stream_is_cut(cuts: list[int]) -> None:
    stream = b"".join(frame(message) for message in FROM_RANK)
    frames, found, place = Frames(), [], 0

    for length in [*cuts, len(stream)]:
        found += list(frames.feed(stream[place : place + length]))
        place += length

    assert [decode(data, m.FromRank) for data in found] == list(FROM_RANK)


@pytest.mark.parametrize("piece", [1 << 14, 1 << 22])
def test_a_frame_that_is_too_long_is_skipped_counted_and_costs_no_memory(piece: int) -> None:
    long = struct.pack("!I", LONGEST_FRAME + 1) + bytes(LONGEST_FRAME + 1)
    stream = frame(REGISTER) + long + frame(FROM_RANK[1])
    dropped: Counter[str] = Counter()
    frames, found, held = Frames(dropped), [], 0

    for start in range(0, len(stream), piece):
        found += list(frames.feed(stream[start : start + piece]))
        held = max(held, len(frames._received))

    assert [decode(data, m.FromRank) for data in found] == [REGISTER, FROM_RANK[1]]
    assert dropped == {"oversized": 1}
    assert held <= piece


def test_the_longest_frame_fits_into_a_batch_that_a_server_takes() -> None:
    record = encode(m.Event(HEAD, "x", 1, 1.0, {"text": "x" * (LONGEST_FRAME - 100)}))
    head = msgspec.structs.replace(HEAD, job="j" * 256, incarnation="i" * 64)

    assert len(record) <= LONGEST_FRAME
    assert len(encode(m.Batch(head, "a" * 64, 2**60, (record,), 2**60))) <= LONGEST
