"""Rows of checkpoints on either database: written, read in pages, counted."""

from torchloom.weaver.store import DatabasePlace, PlaneStore, open_store
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.store.rows import CheckpointRow

COMMITTED = CheckpointRow(
    "a",
    100_000,
    2,
    3,
    state="committed",
    world_size=4,
    bytes=1 << 40,
    place="/runs/a/checkpoints/ckpt_step_100000",
    metrics={"loss": 0.25},
    trigger="command",
    root="/runs/a/checkpoints",
    created_at=5.0,
    committed_at=6.5,
    changed_at=6.5,
)


def test_a_checkpoint_is_read_as_it_was_written_and_replaced_by_its_key(store: PlaneStore) -> None:
    store.state.put(COMMITTED, CheckpointRow("a", 100_000, 1, 3, shards={"parts": {"0": [1, "x"]}}))
    store.state.put(CheckpointRow("a", 100_000, 1, 3, state="failed", reason="fenced"))

    found = store.state.find(CheckpointRow, job="a")

    assert found == [CheckpointRow("a", 100_000, 1, 3, state="failed", reason="fenced"), COMMITTED]
    assert store.state.find(CheckpointRow, state=["committed", "removed"]) == [COMMITTED]


def test_readers_page_by_step_as_a_number_and_count(place: DatabasePlace) -> None:
    store = open_store(place)
    keys = [(9, 0), (10, 0), (10, 1), (99_999, 1), (100_000, 1)]
    rows = [CheckpointRow("a", step, generation, 0, committed_at=1.0) for step, generation in keys]
    store.state.put(*rows, CheckpointRow("b", 7, 0, 0, state="failed"))
    reading = open_reading(place)

    first = reading.state.checkpoints("a", None, 3)
    second = reading.state.checkpoints("a", first[-1].key, 3)

    try:
        assert [row.key[:2] for row in (*first, *second)] == list(reversed(keys))
        assert reading.state.saved() == {"writing": 5, "failed": 1}
        assert reading.state.last_saved(["a", "b"]) == {"a": 1.0}
    finally:
        reading.close()
        store.close()
