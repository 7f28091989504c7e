"""Strikes at checkpoints: one byte of the newest is another, the one before is whole, all mends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.chaos.faults import actions
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike
from torchloom.chaos.targets import Aim
from torchloom.checkpoint.errors import Damaged
from torchloom.checkpoint.layout import Draft, shard_name
from torchloom.checkpoint.local import LocalStorage
from torchloom.checkpoint.manifest import Manifest, Shard

from .standins import StandIns

Make = Callable[..., StandIns]
WORLD = 2
DAMAGE = Fault(0.0, "corrupt-shard", rank=1)


def save(store: LocalStorage, step: int) -> None:
    """Commit a checkpoint of two ranks."""
    draft = Draft(step, 0, 0)
    shards = []
    for rank in range(WORLD):
        data = memoryview(bytearray(b"%d" % step * 5000))
        written = store.write_shard(draft, shard_name(rank), [data])
        shards.append(Shard(shard_name(rank), written.size, written.hash, rank))
    manifest = Manifest(
        job_id="train-a",
        run_id="train-a",
        step=step,
        epoch=0,
        world_size=WORLD,
        strategy="ddp",
        backend="gloo",
        shards=tuple(shards),
        optimizer_state=True,
        rng_state=True,
        generation=0,
        attempt=0,
        created_at="2030-01-01T00:00:00+00:00",
    )
    store.commit(draft, manifest)


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    (tmp_path / "saved").mkdir()
    return LocalStorage(str(tmp_path / "saved"))


def damaged(job: StandIns) -> Aim:
    aim = actions.aim(DAMAGE, job.victim)
    assert aim is not None
    assert aim.undo is not None
    assert actions.strike(Strike(0, "corrupt-shard", 0.0), aim).outcome == "struck"
    return aim


def test_the_newest_checkpoint_is_damaged_and_mended(store: LocalStorage, standins: Make) -> None:
    for step in (99_999, 100_000):  # as names, the other way round
        save(store, step)
    job = standins(checkpoints=store.root)
    path = Path(store.place_of(100_000), "worker_1.pt")
    before = path.read_bytes(), path.stat().st_mtime_ns
    actions.check([DAMAGE], job.victim)

    aim = damaged(job)
    store.verify(99_999)
    with pytest.raises(Damaged, match=r"worker_1\.pt"):
        store.verify(100_000)
    for _ in range(2):
        actions.undo(aim.undo or {})

    assert aim.target.name == str(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    store.verify(100_000)


def test_it_is_mended_where_it_was_set_aside(store: LocalStorage, standins: Make) -> None:
    for step in (5, 10):
        save(store, step)
    before = Path(store.place_of(10), "worker_1.pt").read_bytes()
    aim = damaged(standins(checkpoints=store.root))

    aside = store.set_aside(10)
    actions.undo(aim.undo or {})

    assert (Path(store.root) / aside / "worker_1.pt").read_bytes() == before


def test_one_that_was_removed_or_written_anew_is_left_alone(
    store: LocalStorage, standins: Make
) -> None:
    for step in (5, 10):
        save(store, step)
    aim = damaged(standins(checkpoints=store.root))
    path = Path(aim.target.name)
    hurt = path.read_bytes()

    store.remove(10)
    actions.undo(aim.undo or {})
    save(store, 10)
    actions.undo(aim.undo or {})
    store.verify(10)
    other = path.with_name("other")
    other.write_bytes(hurt)  # another file, though its bytes are the same
    other.replace(path)
    actions.undo(aim.undo or {})

    assert path.read_bytes() == hurt


@pytest.mark.parametrize(
    ("root", "why"), [("s3://bucket/x", "no checkpoints on a local disk"), ("", "no checkpoints")]
)
def test_without_local_checkpoints_it_is_refused(root: str, why: str, standins: Make) -> None:
    with pytest.raises(NotPossible, match=why):
        actions.check([DAMAGE], standins(checkpoints=root).victim)


def test_the_only_checkpoint_is_never_damaged(store: LocalStorage, standins: Make) -> None:
    save(store, 5)
    job = standins(checkpoints=store.root)

    with pytest.raises(NotPossible, match="fewer than two committed checkpoints"):
        actions.check([DAMAGE], job.victim)

    assert actions.aim(DAMAGE, job.victim) is None
