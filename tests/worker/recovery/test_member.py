"""What a rank says and believes when the members of its job change."""

from collections import deque

import pytest

from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    Go,
    JoinGeneration,
    LetStand,
    NotRestored,
    Release,
    Restored,
    Training,
    Transfer,
)
from torchloom.messages.plane import VERSION, Head, Message
from torchloom.rules.membership.faults import FaultOwner
from torchloom.worker.recovery.membership import Member, RankPosition


def head(generation: int) -> Head:
    return Head(VERSION, "job", generation, 1, "life", "trainer")


class Script:
    """A line on which what is heard comes at set times; waiting lets the time pass."""

    def __init__(self, *heard: tuple[float, Message], newest: int = 3) -> None:
        self.newest = newest
        self.training = -1
        self.now = 100.0
        self.said: list[tuple[float, Message]] = []
        self.held: Message | None = None
        self._heard = deque((100.0 + at, message) for at, message in heard)

    def clock(self) -> float:
        return self.now

    def send(self, message: Message) -> None:
        self.said.append((round(self.now - 100.0, 3), message))

    def keep_sending(self, message: Message | None) -> None:
        self.held = message

    def forget(self) -> None:
        pass

    def next(self, timeout: float) -> Message | None:
        assert timeout > 0, "it turns round and round"
        if not self._heard or self._heard[0][0] > self.now + timeout:
            self.now += timeout
            return None
        self.now, message = self._heard.popleft()
        self.newest = max(self.newest, message.head.generation)
        return message


def member(line: Script, is_new: bool = False) -> Member:
    return Member(line, head(3), is_new, line.clock)


def test_a_rank_that_trains_says_so_on_and_on() -> None:
    line = Script()

    member(line).train(7, "no model is wrapped")

    assert line.held == Training(head(3), 7, "no model is wrapped")
    assert line.training == 3


def test_an_exception_is_a_peers_as_soon_as_the_generation_is_over() -> None:
    line = Script((0.03, JoinGeneration(head(4), 1)))

    assert member(line).fault_owner(7, True, "gloo") is FaultOwner.PEER

    assert line.now == 100.03
    assert line.said == [(0.0, Broke(head(3), 7, True, "gloo"))]


def test_an_exception_of_the_program_is_its_own_after_two_seconds_of_silence() -> None:
    line = Script()

    assert member(line).fault_owner(7, False, "ValueError") is FaultOwner.OWN

    assert line.now == 102.0
    assert [at for at, _ in line.said] == [0.0, 0.5, 1.0, 1.5]


def test_a_collective_error_waits_for_the_weaver_however_long() -> None:
    line = Script((50.0, LetStand(head(3), 2)))

    assert member(line).fault_owner(7, True, "gloo") is FaultOwner.OWN

    assert line.now == 150.0


def test_an_exception_that_is_let_stand_is_still_a_peers_if_a_death_is_heard_of() -> None:
    line = Script((0.1, LetStand(head(3), 2)), (1.2, JoinGeneration(head(4), 2)))

    assert member(line).fault_owner(7, True, "gloo") is FaultOwner.PEER


def test_a_rank_says_where_it_stands_until_it_is_told_how_to_go_on() -> None:
    transfer = Transfer(head(4), 1, "file:///store", 7)
    line = Script((1.2, transfer), newest=4)
    one = member(line)

    assert one.meet(lambda: RankPosition(7, (5, 6))) == transfer

    said = Arrived(head(4), 7, (5, 6))
    assert line.said == [(0.0, said), (0.5, said), (1.0, said)]
    assert one.generation == 4
    assert not one.is_over


def test_a_loss_while_they_gather_has_all_say_it_for_the_newer_generation() -> None:
    transfer = Transfer(head(6), 1, "file:///store", 7)
    heard = (0.1, JoinGeneration(head(5), 1)), (0.2, JoinGeneration(head(6), 1)), (0.3, transfer)
    line = Script(*heard, newest=4)

    assert member(line).meet(lambda: RankPosition(None, (), "why")) == transfer

    words = [Arrived(head(at), None, (), "why") for at in (4, 5, 6)]
    assert [word for _, word in line.said] == words


def test_a_newcomer_is_a_member_of_no_generation_before_it_has_joined_one() -> None:
    line = Script((0.1, Transfer(head(3), 1, "file:///store", 0)))
    one = member(line, is_new=True)

    assert one.is_over
    assert one.meet(lambda: RankPosition(None)).head.generation == 3
    assert not one.is_over


def test_a_rank_that_has_what_it_needs_waits_for_the_word_to_train() -> None:
    stale = Transfer(head(3), 1, "file:///store", 7)
    line = Script((0.1, stale), (0.6, Go(head(3), 1, 7)))

    assert member(line).is_restored(0.25, 4096)

    word = Restored(head(3), 0.25, 4096)
    assert line.said == [(0.0, word), (0.5, word)]


def test_a_loss_before_the_word_to_train_has_the_rank_leave_again() -> None:
    line = Script((0.1, JoinGeneration(head(4), 1)))

    assert not member(line).is_restored(0.25, 4096)


def test_what_could_not_be_taken_is_said_until_the_next_generation() -> None:
    line = Script((0.7, JoinGeneration(head(4), 1)))

    member(line).refuse("damaged")

    word = NotRestored(head(3), "damaged")
    assert line.said == [(0.0, word), (0.5, word)]


@pytest.mark.parametrize(
    ("heard", "is_done", "seconds"),
    [
        (Release(head(3), 1), True, 0.1),
        (JoinGeneration(head(4), 1), False, 0.1),
        (None, True, 60.0),
    ],
)
def test_a_rank_without_steps_waits_for_the_others_but_not_for_ever(
    heard: Message | None, is_done: bool, seconds: float
) -> None:
    line = Script(*([(0.1, heard)] if heard else []))

    assert member(line).has_finished(40) is is_done

    assert line.now == pytest.approx(100.0 + seconds)
    assert line.said[0] == (0.0, Finished(head(3), 40))
    assert line.held is None


def test_a_program_that_left_its_loop_says_so_and_cannot_come_back() -> None:
    line = Script()
    one = member(line)

    one.leave(12)
    words = [line.held]
    one.decline(4, "it has left")
    words.append(line.held)

    assert words == [Finished(head(3), 12), Arrived(head(4), None, (), "it has left")]
