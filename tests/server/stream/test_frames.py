"""Frames of ours, taken apart by the websockets package."""

import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.streams import StreamReader

from torchloom.server.stream.frames import close_reason, framed_text, joined, text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_any_length_of_text_is_one_whole_frame(length: int) -> None:
    text, reader = b"x" * length, StreamReader()
    reader.feed_data(text_frame(text) + text_frame(b"next"))

    found = []
    for _ in range(2):
        parsing = Frame.parse(reader.read_exact, mask=False)
        with pytest.raises(StopIteration) as ended:
            next(parsing)
        found.append(ended.value.value)

    assert found == [Frame(Opcode.TEXT, text), Frame(Opcode.TEXT, b"next")]
    assert framed_text(text_frame(text)) == text


def test_frames_are_joined_to_pieces_of_some_kilobytes_and_large_ones_are_not_copied() -> None:
    small, large = [bytes([number]) * 5000 for number in range(7)], b"x" * 100_000

    pieces = joined([*small, large])

    assert b"".join(pieces) == b"".join([*small, large])
    assert [len(piece) for piece in pieces] == [15_000, 15_000, 5000, 100_000]
    assert pieces[-1] is large


@pytest.mark.parametrize("text", ["x" * 200, "é" * 100, "日" * 100, "\ud800" * 100, ""])
def test_a_reason_of_any_text_fits_into_a_frame_that_closes(text: str) -> None:
    reason = close_reason(text)

    assert len(Frame(Opcode.CLOSE, Close(1003, reason).serialize()).data) <= 125
    assert len(reason.encode()) >= min(len(text), 120)
