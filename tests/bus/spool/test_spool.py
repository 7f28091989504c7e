import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.bus.spool.spool import Spool, SpoolFull, SpoolTaken
from torchloom.messages.plane import VERSION, Batch, Head

from ...harness.home import until

ONE = Head(VERSION, "job-1", 3, 0, "aaaa")
TWO = Head(VERSION, "job-1", 3, 1, "bbbb")


def opened(folder: Path, *heads: Head, limit: int = 1 << 20) -> Spool:
    spool = Spool(folder, "n1", limit)
    for head in heads:
        spool.open(head, 4711, 99)
    return spool


def said(batches: list[Batch]) -> list[tuple[int, str, int, int]]:
    """Return rank, records, first number and dropped points of each batch."""
    return [
        (batch.head.rank, b"".join(batch.records).decode(), batch.first, batch.dropped)
        for batch in batches
    ]


def test_records_come_out_in_batches_with_the_numbers_they_went_in_with(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, TWO)

    numbers = [spool.append(head, text) for head, text in ((ONE, b"a"), (TWO, b"x"), (ONE, b"b"))]

    assert numbers == [1, 1, 2]
    assert list(spool.batches(10)) == [
        Batch(ONE, "n1", 1, (b"a", b"b")),
        Batch(TWO, "n1", 1, (b"x",)),
    ]
    assert list(spool.batches(10)) == []
    spool.append(ONE, b"c")
    assert said(list(spool.batches(10))) == [(0, "c", 3, 0)]


def test_what_is_stored_is_forgotten_and_the_rest_is_sent_again(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE)
    for text in (b"a", b"b", b"c"):
        spool.append(ONE, text)
        list(spool.batches(10))

    spool.stored(ONE, 2)
    spool.again()

    assert said(list(spool.batches(10))) == [(0, "c", 3, 0)]
    spool.stored(ONE, 3)
    spool.again()
    assert list(spool.batches(10)) == []
    assert (spool.pending, spool.under_way) == (0, 0)


def test_no_more_batches_than_the_window_are_under_way(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, limit=8 << 20)
    for _ in range(10):
        spool.append(ONE, bytes(200 << 10))

    firsts = [batch.first for batch in spool.batches(4)]
    more = list(spool.batches(4))
    spool.stored(ONE, 2)

    assert (firsts, more) == ([1, 2, 3, 4], [])
    assert [batch.first for batch in spool.batches(4)] == [5, 6]


def test_a_batch_says_which_number_must_be_there_before_it(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE)
    for _ in range(3):
        spool.append(ONE, b"x")
        list(spool.batches(10))

    spool.again()
    spool.append(ONE, bytes(300 << 10))
    first = [(batch.first, batch.follows) for batch in spool.batches(10)]
    spool.stored(ONE, 3)
    spool.again()

    assert first == [(1, 0), (4, 3)]
    assert [(batch.first, batch.follows) for batch in spool.batches(10)] == [(4, 0)]


def test_each_life_has_its_turn(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, TWO, limit=8 << 20)
    for _ in range(5):
        spool.append(ONE, bytes(200 << 10))
    spool.append(TWO, b"x")

    assert [batch.head.rank for batch in spool.batches(3)] == [0, 1, 0]


def test_an_agent_that_comes_back_goes_on_with_the_numbers(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE)
    spool.append(ONE, b"a")
    spool.append(ONE, b"b")
    list(spool.batches(10))
    spool.stored(ONE, 1)
    spool.close()

    again = Spool(tmp_path, "n1", 1 << 20)

    assert again.open(ONE, 4711, 99) == 2
    assert again.append(ONE, b"c") == 3
    assert said(list(again.batches(10))) == [(0, "abc", 1, 0)]  # the weaver knows numbers it has


def test_numbers_go_on_even_when_all_was_stored_and_every_file_let_go(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE)
    for _ in range(100):
        spool.append(ONE, bytes(10_000))
    list(spool.batches(100))
    spool.stored(ONE, 100)
    held = spool.size
    spool.close()

    again = Spool(tmp_path, "n1", 1 << 20)

    assert held < 64 << 10
    assert again.append(ONE, b"next") == 101
    last = list(again.batches(10))[-1]
    assert (last.records[-1], last.first + len(last.records)) == (b"next", 102)


@pytest.mark.parametrize("lost", range(1, 34))
def test_a_torn_tail_is_cut_and_the_number_given_anew(tmp_path: Path, lost: int) -> None:
    spool = opened(tmp_path, ONE)
    spool.append(ONE, b"whole")
    spool.append(ONE, b"torn tail")
    spool.close()
    (file,) = tmp_path.glob("*/*.log")
    os.truncate(file, file.stat().st_size - lost)

    again = Spool(tmp_path, "n1", 1 << 20)

    assert again.append(ONE, b"|anew") == 2
    assert said(list(again.batches(10))) == [(0, "whole|anew", 1, 0)]


def test_a_full_spool_lets_the_oldest_metrics_go_and_says_how_many_points(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, limit=8000)
    for number in range(1, 101):
        if number % 10 == 0:
            spool.append(ONE, f"event {number}".encode())
        else:
            spool.append(ONE, bytes(190), points=3)

    batches = list(spool.batches(1000))

    got = {batch.first + place for batch in batches for place in range(len(batch.records))}
    assert spool.size <= 8000
    assert set(range(10, 101, 10)) <= got
    assert sum(batch.dropped for batch in batches) == 3 * (100 - len(got))
    assert 100 in got
    assert 99 in got


def test_the_oldest_metrics_go_first(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, limit=8000)
    for _ in range(200):
        spool.append(ONE, bytes(190), points=1)

    batches = list(spool.batches(1000))

    assert len(batches) == 1
    assert batches[0].first + len(batches[0].records) == 201
    assert batches[0].dropped == batches[0].first - 1 > 100


def test_what_may_not_be_lost_is_refused_when_there_is_no_room_at_all(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, limit=8000)
    while spool.size + 130 <= 16_000:
        spool.append(ONE, bytes(100))
    taken = spool.open(ONE, 4711, 99)

    with pytest.raises(SpoolFull):
        spool.append(ONE, bytes(200))
    records = [record for batch in spool.batches(1000) for record in batch.records]
    spool.stored(ONE, taken)

    assert records == [bytes(100)] * taken
    assert spool.append(ONE, bytes(200)) == taken + 1


def test_a_disk_that_takes_half_a_record_has_taken_none(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE)
    spool.append(ONE, b"a")
    before, usual = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIG_DFL
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(SpoolFull):
            spool.append(ONE, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, usual)

    assert spool.append(ONE, b"b") == 2
    assert said(list(spool.batches(10))) == [(0, "ab", 1, 0)]


def test_a_life_is_buried_when_all_of_it_is_stored(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, TWO)
    spool.append(ONE, b"a")
    first, second = spool.incarnations()

    gone = [spool.remove(first), spool.remove(second)]
    spool.stored(ONE, 1)

    assert gone == [False, True]
    assert spool.remove(first)
    assert (spool.incarnations(), list(tmp_path.glob("*/*")), spool.size) == ([], [], 0)


def test_two_agents_do_not_share_a_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "n1")

    with pytest.raises(SpoolTaken):
        Spool(tmp_path, "n1")
    spool.close()
    Spool(tmp_path, "n1").close()


def test_a_folder_of_which_nothing_can_be_said_is_counted_and_left(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "who").write_bytes(b"\xff")

    spool = opened(tmp_path, ONE)

    assert spool.damaged == 1
    assert spool.append(ONE, b"a") == 1


def test_damage_in_the_middle_costs_what_is_damaged_and_is_told(tmp_path: Path) -> None:
    spool = opened(tmp_path, ONE, limit=8000)
    for number in range(12):
        spool.append(ONE, b"%03d" % number * 100)
    spool.close()
    first, *_ = sorted(tmp_path.glob("*/*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[400] ^= 1
    first.write_bytes(damaged)

    batches = list(Spool(tmp_path, "n1", 8000).batches(10))

    numbers = {batch.first + place for batch in batches for place in range(len(batch.records))}
    assert numbers == {1, *range(5, 13)}
    assert [batch.dropped for batch in batches] == [0, 3]


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["metric", "event", "send", "lose", "answer", "restart", "tear"]),
        st.integers(0, 40),
    ),
    max_size=120,
)


class World:
    """A rank, the spool, and a weaver that believes numbers only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spool = opened(folder, ONE, limit=2000)
        self.truth: list[tuple[bytes, bool]] = []  # every record, and whether it may be let go
        self.database: dict[int, bytes] = {}
        self.upto = 0
        self.dropped = 0

    def do(self, what: str, amount: int) -> None:
        if what in ("metric", "event"):
            self.append(what == "metric", amount)
        elif what in ("send", "lose"):
            for batch in self.spool.batches(amount):
                if what == "send":
                    self.receive(batch)
        elif what == "answer":
            self.spool.stored(ONE, self.upto)
        else:
            self.restart(amount if what == "tear" else 0)

    def append(self, droppable: bool, size: int) -> None:
        record = b"%d:" % len(self.truth) + bytes(size)
        try:
            number = self.spool.append(ONE, record, points=1 if droppable else None)
        except SpoolFull:
            return
        self.truth.append((record, droppable))
        assert number == len(self.truth)

    def receive(self, batch: Batch) -> None:
        if batch.follows > self.upto:
            return  # one before it is lost; it will come again
        for number, record in enumerate(batch.records, batch.first):
            if number > self.upto:
                self.database[number] = record
        if batch.first > self.upto + 1:
            assert batch.dropped > 0
            self.dropped += batch.first - self.upto - 1
        self.upto = max(self.upto, batch.first + len(batch.records) - 1)

    def restart(self, torn: int) -> None:
        self.spool.close()
        newest = max(self._folder.glob("*/*.log"))
        with open(newest, "ab") as file:
            file.write(b"\x00\x00\x00\x30torn" * torn)
        self.spool = Spool(self._folder, "n1", 2000)

    def finish(self) -> None:
        self.spool.again()
        for batch in self.spool.batches(10_000):
            self.receive(batch)
        self.spool.close()


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_whatever_happens_the_weaver_gets_each_record_once_or_is_told_of_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    world = World(tmp_path_factory.mktemp("spool"))
    for what, amount in steps:
        world.do(what, amount)

    world.append(False, 1)
    world.finish()

    got = world.database
    missing = [number for number in range(1, len(world.truth) + 1) if number not in got]
    assert all(world.truth[number - 1][0] == record for number, record in got.items())
    assert all(world.truth[number - 1][1] for number in missing)
    assert world.dropped == len(missing)


WRITER = """
import sys
from pathlib import Path
from torchloom.messages.plane import Head
from torchloom.bus.spool.spool import Spool
head = Head(1, "job-1", 3, 0, "aaaa")
spool = Spool(Path(sys.argv[1]), "n1")
last = spool.open(head, 1, 1)
while True:
    last += 1
    print(spool.append(head, b"record %d" % last), flush=True)
"""


@pytest.mark.process
def test_what_was_taken_survives_ten_deaths_of_the_agent(tmp_path: Path) -> None:
    told = 0
    for _ in range(10):
        with open(tmp_path / "told", "w") as out:
            words = [sys.executable, "-c", WRITER, str(tmp_path / "spool")]
            writer = subprocess.Popen(words, stdout=out)
        until(lambda: len((tmp_path / "told").read_text().splitlines()) > 50)
        writer.kill()
        writer.wait()
        told = int((tmp_path / "told").read_text().rpartition("\n")[0].split("\n")[-1])

    spool = Spool(tmp_path / "spool", "n1")
    records = [record for batch in spool.batches(10_000) for record in batch.records]

    assert len(records) >= told > 500
    assert records == [b"record %d" % number for number in range(1, len(records) + 1)]
