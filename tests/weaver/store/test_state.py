"""Rows come back as they went in, writes are all or nothing, an old weaver may not write."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from torchloom.weaver.store import DatabasePlace, PlaneStore, StateLost, Superseded, open_store
from torchloom.weaver.store import rows as kinds
from torchloom.weaver.store.rows import (
    AgentRow,
    CommandAck,
    CommandRow,
    DeviceRow,
    EventRow,
    Fact,
    GuardRow,
    JobRow,
    MapEntry,
    RankProcessRow,
    RunRow,
    StoredRow,
)
from torchloom.weaver.store.state_tables import TABLE_OF

ROWS: list[StoredRow] = [
    JobRow(
        "j1",
        "gpt",
        "ann",
        "local",
        "local://x/j1",
        "RUNNING",
        "",
        "r1",
        2,
        3,
        1.5,
        2.5,
        None,
        {},
        7,
    ),
    RunRow("r1", "j1", "gpt", {"lr": 0.1, "nested": {"a": [1, None]}}, 1.0),
    AgentRow("a1", "host", "boot", 12, "up", "", 1.0, 2.0),
    DeviceRow("GPU-1", "host", "cuda", 0, 2**40, "failed", "dcgm", "XID 79", 3.0),
    RankProcessRow(
        "j1", "trainer", 1, 3, "inc", 2, 1, "host", "a1", 77, 2**50, "trainer/0", ["GPU-1"]
    ),
    MapEntry("GPU-1", "j1/trainer/1", 4),
    Fact("drmap_version", 4),
    CommandRow(
        "c1", 1, "j1", "knob", {"lr": 0.1}, None, "ann", "too high", 5.0, "applied", 3, 2, 412
    ),
    CommandAck("c1", 3, 1, "inc", "applied", 412, 1, "", 0.1, float("inf"), 6.0),
    GuardRow("c1", "j1", "loss>1.5x", 200, 2.25, "kept", "all went well"),
]


def test_every_kind_of_row_comes_back_as_it_went_in(store: PlaneStore) -> None:
    store.state.put(*ROWS)

    assert [store.state.find(type(row)) for row in ROWS] == [[row] for row in ROWS]


def test_every_row_class_has_a_table() -> None:
    classes = {kind for kind in vars(kinds).values() if isinstance(kind, type)}

    assert TABLE_OF.keys() == {kind for kind in classes if issubclass(kind, StoredRow)} - {
        StoredRow
    }


def test_a_row_with_the_same_key_is_replaced(store: PlaneStore) -> None:
    store.state.put(JobRow("j1", "a"), JobRow("j2", "b"))
    store.state.put(JobRow("j1", "c"))

    assert store.state.find(JobRow) == [JobRow("j1", "c"), JobRow("j2", "b")]
    assert store.state.find(JobRow, name=["b", "x"]) == [JobRow("j2", "b")]
    assert store.state.one(JobRow, id="j3") is None


def test_rows_are_removed_by_their_values(store: PlaneStore) -> None:
    store.state.put(MapEntry("d1", "p1", 1), MapEntry("d1", "p2", 1), MapEntry("d2", "p1", 1))

    store.state.remove(MapEntry, process="p1")

    assert store.state.find(MapEntry) == [MapEntry("d1", "p2", 1)]


def test_what_happened_is_numbered_and_read_from_a_cursor(store: PlaneStore) -> None:
    store.state.note(EventRow(time=1.0, job="j1", kind="a"), EventRow(time=2.0, kind="b"))
    store.state.note(EventRow(time=3.0, job="j1", kind="c", rank=2, facts={"x": [1]}))

    first, second, third = store.state.happened()
    assert [first.kind, second.kind, third.kind] == ["a", "b", "c"]
    assert first.seq < second.seq < third.seq
    assert store.state.happened("j1", after=first.seq) == [third]
    assert store.state.last_happened(limit=2) == [second, third]


def test_a_transaction_is_stored_whole_or_not_at_all(store: PlaneStore) -> None:
    def broken() -> None:
        with store.state.together():
            store.state.put(JobRow("j1"))
            assert store.state.one(JobRow, id="j1") == JobRow("j1")
            store.state.note(EventRow(job="j1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()

    assert (store.state.find(JobRow), store.state.happened()) == ([], [])


def test_many_rows_of_one_transaction_are_seen_inside_it_and_not_by_another_thread(
    store: PlaneStore,
) -> None:
    with store.state.together(), ThreadPoolExecutor() as other:
        for number in range(1000):
            store.state.put(JobRow(f"j{number:04}", "first"), JobRow("same", str(number)))
            store.state.note(EventRow(kind=str(number)))
        assert store.state.one(JobRow, id="same") == JobRow("same", "999")
        store.state.remove(JobRow, name="first")
        assert store.state.find(JobRow) == [JobRow("same", "999")]
        assert other.submit(store.state.find, JobRow).result() == []

    assert store.state.find(JobRow) == [JobRow("same", "999")]
    assert [each.kind for each in store.state.happened()] == [str(n) for n in range(1000)]


def test_a_database_that_fails_is_said_in_words(store: PlaneStore) -> None:
    with store.state.together() as transaction:
        transaction.connection.execute(sa.text("DROP TABLE jobs"))

    with pytest.raises(StateLost, match=r"the state database failed: .*jobs"):
        store.state.put(JobRow("j1"))


def test_each_start_takes_the_next_epoch_and_ends_the_one_before(place: DatabasePlace) -> None:
    old, new = open_store(place), open_store(place)

    assert old.state.take_epoch("host", 1) == 1
    old.state.put(JobRow("j1"))
    assert new.state.take_epoch("host", 2) == 2
    with pytest.raises(Superseded, match="epoch 2 is running"):
        old.state.put(JobRow("j2"))
    new.state.put(JobRow("j3"))

    assert [job.id for job in new.state.find(JobRow)] == ["j1", "j3"]
    assert [row.epoch for row in new.state.find(kinds.Epoch)] == [1, 2]
    old.close()
    new.close()


def test_hostile_texts_are_stored_harmlessly(store: PlaneStore) -> None:
    names = ["a\0b", "half \ud800", "'; DROP TABLE jobs; --", "☃" * 1000]

    store.state.put(*(JobRow(str(i), name) for i, name in enumerate(names)))
    store.state.note(EventRow(facts={"x": "a\0b\ud800", "y": float("-inf")}))

    shown = [job.name for job in store.state.find(JobRow)]
    assert shown == ["a\ufffdb", "half ?", names[2], names[3]]
    assert store.state.happened()[0].facts == {"x": "a\0b\ud800", "y": float("-inf")}


def test_a_number_that_no_database_takes_is_stored_as_the_largest_it_does(
    store: PlaneStore,
) -> None:
    most = 2**63 - 1

    store.state.put(JobRow("j1", attempt=2**64 - 1, generation=-(2**64), step=2**63 + 5))

    assert store.state.find(JobRow) == [JobRow("j1", attempt=most, generation=-most, step=most)]


def test_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    opened = open_store(DatabasePlace(tmp_path / "plane"))
    opened.state.put(JobRow("j1"))

    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "plane").iterdir()}
    opened.close()

    assert (tmp_path / "plane").stat().st_mode & 0o777 == 0o700
    assert modes.keys() >= {"state.db", "records.db", "state.db-wal"}
    assert set(modes.values()) == {"0o600"}
