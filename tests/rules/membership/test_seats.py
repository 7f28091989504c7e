"""Who has which seat, and where newcomers go."""

from torchloom.rules.membership.seats import (
    MemberProcess,
    MemberSeat,
    ended,
    seat_newcomers,
    seat_of,
    survivors,
)

ROOM = {"a": 2, "b": 1, "spare": 1}
SEATS = (MemberSeat(0, "a"), MemberSeat(1, "a"), MemberSeat(2, "b"))


def test_only_the_very_process_has_the_seat() -> None:
    assert seat_of(SEATS, MemberProcess(1, 1, "a")) == SEATS[1]
    assert seat_of(SEATS, MemberProcess(1, 2, "a")) is None
    assert seat_of(SEATS, MemberProcess(1, 1, "b")) is None
    assert seat_of(SEATS, MemberProcess(9, 1, "a")) is None


def test_a_newcomer_starts_where_its_pages_are() -> None:
    seats = (SEATS[0], MemberSeat(1, "a", is_gone=True), SEATS[2])

    after = seat_newcomers(seats, ROOM, lost=())

    assert after == (SEATS[0], MemberSeat(1, "a", life=2, is_new=True), SEATS[2])


def test_the_ranks_of_a_lost_node_go_where_there_is_room_and_the_others_wait() -> None:
    seats = (MemberSeat(0, "a", is_gone=True), MemberSeat(1, "a", is_gone=True), SEATS[2])

    after = seat_newcomers(seats, ROOM, lost={"a"})

    moved = MemberSeat(0, "spare", life=2, is_new=True)
    waiting = MemberSeat(1, "", life=2, is_new=True)
    assert after == (moved, waiting, SEATS[2])
    assert seat_newcomers(after, ROOM, lost={"a"}) == after
    assert seat_newcomers(after, ROOM, lost=())[1] == MemberSeat(1, "a", life=3, is_new=True)


def test_who_is_being_killed_keeps_its_seat_until_it_has_ended() -> None:
    seats = (SEATS[0], MemberSeat(1, "a", is_ending=True), SEATS[2])

    assert seat_newcomers(seats, ROOM, lost=()) == seats
    assert survivors(seats) == [SEATS[0], SEATS[2]]


def test_ending_all_spares_those_that_never_had_a_process() -> None:
    seats = (SEATS[0], MemberSeat(1, "", is_new=True), MemberSeat(2, "b", is_gone=True))

    assert ended(seats) == (MemberSeat(0, "a", is_ending=True), seats[1], seats[2])
