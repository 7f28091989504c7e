"""Who hears what, and when: a client that catches up hears what is new after what it missed."""

from torchloom.server.stream.hub import Channel, Listener, StreamFilter, written
from torchloom.server.stream.payloads import ReaderPosition, StreamPayload

from .sinks import Sink

ALL = StreamFilter(frozenset({"metric", "state", "event", "log"}))


def event(number: int, rank: int = 0) -> StreamPayload:
    return StreamPayload("j", "event", rank, float(number), {"seq": number}, {"reported": number})


def listener(wish: StreamFilter = ALL) -> tuple[Listener, Sink]:
    one, sink = Listener("j", wish), Sink()
    one.sender = sink
    return one, sink


def test_what_is_new_waits_until_a_client_has_caught_up() -> None:
    channel, (one, sink) = Channel("j", ReaderPosition(0, 5, 0)), listener()
    channel.listeners.add(one)
    one.hold()

    channel.publish([event(6), event(7)])
    one.send(written([event(4), event(5)], ReaderPosition(0, 3, 0)))
    before = sink.numbers()
    one.release(ReaderPosition(0, 5, 0))
    channel.publish([event(8)])

    assert before == [4, 5]
    assert sink.numbers() == [4, 5, 6, 7, 8]


def test_what_waited_and_was_read_meanwhile_is_not_sent_twice() -> None:
    channel, (one, sink) = Channel("j", ReaderPosition(0, 5, 0)), listener()
    channel.listeners.add(one)
    one.hold()

    channel.publish([event(6), event(7)])
    one.release(ReaderPosition(0, 6, 0))

    assert sink.numbers() == [7]


def test_a_client_for_whom_too_much_waits_is_to_read_on_by_itself() -> None:
    channel, one, sink = Channel("j", ReaderPosition()), Listener("j", ALL, most_held=2), Sink()
    one.sender = sink
    channel.listeners.add(one)
    one.hold()

    for number in range(1, 9):
        channel.publish([event(number)])
    was_overrun = one.is_overrun
    one.hold()
    channel.publish([event(9)])
    one.release(channel.standing.copy())

    assert was_overrun
    assert sink.sent() == []


def test_clients_with_the_same_wish_are_sent_the_same_bytes() -> None:
    channel = Channel("j", ReaderPosition())
    several = [
        listener(wish)[0] for wish in (ALL, ALL, StreamFilter(frozenset({"event"}), frozenset({1})))
    ]
    channel.listeners.update(several)

    channel.publish([event(1, rank=0), event(2, rank=1)])

    first, second, other = [one.sender.packets[0] for one in several]  # type: ignore[attr-defined]
    assert first is second
    assert first.frames is second.frames
    assert [message.draft.rank for message in other.messages] == [1]


def test_a_wish_for_ranks_is_no_wish_against_what_has_none() -> None:
    wish = StreamFilter(frozenset({"event"}), frozenset({1}))

    assert [wish.wants(event(1, rank)) for rank in (-1, 0, 1)] == [True, False, True]
