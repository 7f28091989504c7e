from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from torchloom.bus.progress_page import ProgressPage
from torchloom.launch.node_agent.server import KnownRanks
from torchloom.messages.plane import NO_RANK, Head, Message, Progress, Register

from ...harness.message_samples import REGISTER


@dataclass(eq=False)
class Wire:
    """A line that remembers what it was given."""

    pid: int = 7
    started: int = 1
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)


def register(life: str, generation: int = 0, started: int = 1, page: str = "") -> Register:
    head = Head(1, "j", generation, 0, life)
    return msgspec.structs.replace(REGISTER, head=head, started=started, page=page)


def test_saying_it_again_changes_nothing() -> None:
    ranks, line = KnownRanks(), Wire()

    taken = [ranks.register(register("a"), line) for _ in range(3)]

    assert taken == [True] * 3
    assert ranks.registers() == (register("a"),)
    assert ranks.connection_to(register("a").head) is line


def test_a_new_life_takes_the_place_and_the_old_one_cannot_have_it_back() -> None:
    ranks, old, new = KnownRanks(), Wire(), Wire()
    ranks.register(register("a", 0, 1), old)

    taken = (ranks.register(register("b", 1, 2), new), ranks.register(register("a", 0, 1), old))

    assert taken == (True, False)
    assert ranks.registers() == (register("b", 1, 2),)
    assert ranks.connection_to(Head(1, "j", 1, 0, "")) is new
    assert ranks.connection_to(Head(1, "j", 1, 0, "a")) is None


def test_of_two_lives_in_one_generation_the_younger_process_is_the_rank() -> None:
    ranks = KnownRanks()
    ranks.register(register("young", 0, 20), Wire())

    assert not ranks.register(register("old", 0, 10), Wire())
    assert ranks.is_current(register("young").head)
    assert not ranks.is_current(register("old").head)


def test_what_acts_for_an_old_generation_is_not_current() -> None:
    ranks = KnownRanks()
    ranks.register(register("a", 3), Wire())

    ranks.generation_seen(Head(1, "j", 4, 9, "another rank"))

    assert not ranks.is_current(Head(1, "j", 3, 0, "a"))
    assert ranks.is_current(Head(1, "j", 4, 0, "a"))
    assert ranks.is_current(Head(1, "other job", 0, 0, "x"))


def test_a_rank_whose_line_is_lost_is_known_until_its_process_is_gone() -> None:
    ranks, line = KnownRanks(), Wire(pid=7, started=70)
    ranks.register(register("a"), line)
    alive = {(7, 70)}

    ranks.hung_up(line)
    first = ranks.bury(lambda pid, started: (pid, started) in alive)
    known, reachable = ranks.registers(), ranks.connection_to(register("a").head)
    alive.clear()
    second = ranks.bury(lambda pid, started: (pid, started) in alive)

    assert (first, known, reachable) == ([], (register("a"),), None)
    assert (second, ranks.registers()) == ([register("a")], ())


def test_a_launch_process_has_nobodys_seat_and_is_found_by_its_job_while_it_is_there() -> None:
    ranks, line = KnownRanks(), Wire()
    said = msgspec.structs.replace(REGISTER, head=Head(1, "j", 0, NO_RANK, "launch"))

    ranks.register(said, line)
    known, found, others = ranks.registers(), ranks.launches("j"), ranks.launches("k")
    ranks.hung_up(line)

    assert (known, found, others) == ((said,), [line], [])
    assert (ranks.registers(), ranks.launches("j")) == ((), [])


def test_progress_is_read_from_the_pages(tmp_path: Path) -> None:
    ranks = KnownRanks()
    page = ProgressPage.open(tmp_path / "p")
    page.boundary(step=12, applied=12, lasted_ns=5_000_000, now_ns=1_000_000_000)
    said = register("a", page=str(tmp_path / "p"))
    ranks.register(said, Wire())
    ranks.register(msgspec.structs.replace(REGISTER, page=str(tmp_path / "none")), Wire())

    assert ranks.progress(now_ns=3_500_000_000) == (Progress(said.head, 12, 0, 2.5, 0.005),)


def test_a_page_that_comes_later_or_elsewhere_is_found(tmp_path: Path) -> None:
    ranks, line = KnownRanks(), Wire()
    ranks.register(register("a", page=str(tmp_path / "p")), line)
    nothing = ranks.progress()

    ProgressPage.open(tmp_path / "p").boundary(1, 1, 0, 0)
    later = [one.step for one in ranks.progress()]
    ProgressPage.open(tmp_path / "q").boundary(2, 2, 0, 0)
    ranks.register(register("a", page=str(tmp_path / "q")), line)

    assert (nothing, later) == ((), [1])
    assert [one.step for one in ranks.progress()] == [2]
