"""What every store promises, asked of the local one and of S3 with the same words."""

import dataclasses
import threading
from pathlib import Path

import pytest

from torchloom.checkpoint import (
    AlreadyCommitted,
    BadManifest,
    CheckpointError,
    Damaged,
    Draft,
    Fenced,
    Incomplete,
    NotCommitted,
    Shard,
    shard_name,
)
from torchloom.checkpoint.stream import CHUNK, memory

from .scenarios import commit, manifest_of, write
from .witness import content
from .worlds import (
    Damage,
    LocalWorld,
    S3World,
    World,
    cut_a_shard,
    flip_a_bit,
    garble_the_manifest,
    lose_a_shard,
)

BOTH = ["local", pytest.param("s3", marks=[pytest.mark.process, pytest.mark.needs("s3")])]
VISIBLE: list[Damage] = [lose_a_shard, cut_a_shard, garble_the_manifest]


@pytest.fixture(params=BOTH)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Give an empty store of each kind."""
    if request.param == "local":
        return LocalWorld(tmp_path / "checkpoints")
    return S3World(request.getfixturevalue("s3_server"), f"{tmp_path.parent.name}/{tmp_path.name}")


def test_what_was_committed_is_read_back(world: World) -> None:
    place = commit(world.storage, 1000)

    manifest = world.storage.manifest(1000)
    assert place == world.storage.place_of(1000) == f"{world.storage.root}/ckpt_step_01000"
    assert (world.storage.latest(), world.storage.committed()) == (1000, [1000])
    assert manifest == manifest_of(1000)
    read = [bytes(world.storage.read_shard(1000, shard)) for shard in manifest.shards]
    assert read == [content(1000, rank) for rank in (0, 1)]
    world.storage.verify(1000)
    assert world.whole() == {1000: 0}


def test_a_store_that_is_not_there_has_no_checkpoints(world: World) -> None:
    storage = world.storage

    assert (storage.latest(), storage.committed(), storage.clear_drafts(9)) == (None, [], [])
    assert storage.sees("nonce") is False
    storage.remove(100)
    storage.discard(Draft(100, 0, 1))
    for ask in (storage.manifest, storage.verify, storage.set_aside):
        with pytest.raises(NotCommitted):
            ask(100)
    with pytest.raises(Incomplete):
        storage.commit(Draft(100, 0, 1), manifest_of(100))


def test_a_draft_shows_which_ranks_have_written(world: World) -> None:
    draft = Draft(20, 0, 1)
    assert world.storage.written(draft) == set()

    for rank in (1, 0):
        world.storage.write_shard(draft, shard_name(rank), [memoryview(b"part")])

    assert world.storage.written(draft) == {shard_name(0), shard_name(1)}
    assert world.storage.written(Draft(20, 1, 1)) == set()


def test_a_draft_is_no_checkpoint(world: World) -> None:
    draft = write(world.storage, 100)

    assert (world.storage.latest(), world.storage.committed()) == (None, [])
    with pytest.raises(NotCommitted):
        world.storage.manifest(100)
    world.storage.commit(draft, manifest_of(100))
    assert world.storage.latest() == 100


def test_a_commit_can_be_said_again_even_after_a_fence(world: World) -> None:
    first = commit(world.storage, 100)
    world.storage.fence(3)

    assert world.storage.commit(Draft(100, 0, 1), manifest_of(100)) == first


def test_an_intact_checkpoint_stays(world: World) -> None:
    commit(world.storage, 100)

    with pytest.raises(AlreadyCommitted):
        commit(world.storage, 100, generation=1)

    assert world.whole() == {100: 0}


@pytest.mark.parametrize("damage", [*VISIBLE, flip_a_bit])
def test_a_damaged_one_is_set_aside_by_the_next_commit(world: World, damage: Damage) -> None:
    commit(world.storage, 100)
    damage(world, 100)

    commit(world.storage, 100, generation=1)

    assert world.whole() == {100: 1}
    assert "ckpt_step_00100.bad" in world.names()
    world.storage.verify(100)


def test_an_older_generation_is_fenced(world: World) -> None:
    draft = write(world.storage, 100, generation=1)
    world.storage.fence(2)
    world.storage.fence(1)

    with pytest.raises(Fenced, match="generation 1 may not commit: generation 2"):
        world.storage.commit(draft, manifest_of(100, 1))

    commit(world.storage, 100, generation=2)
    assert world.whole() == {100: 2}


def test_a_draft_without_all_its_bytes_is_not_committed(world: World) -> None:
    draft = write(world.storage, 100)
    world.put(world.draft(100, 1), b"short")
    with pytest.raises(Incomplete, match="has 5 bytes, not 4096"):
        world.storage.commit(draft, manifest_of(100))
    world.drop(world.draft(100, 1))
    with pytest.raises(Incomplete, match=r"worker_1\.pt: is missing"):
        world.storage.commit(draft, manifest_of(100))

    write(world.storage, 100)
    world.storage.commit(draft, manifest_of(100))

    assert world.whole() == {100: 0}


def test_steps_are_compared_as_numbers(world: World) -> None:
    for step in (100_000, 99_999, 7):
        commit(world.storage, step)

    assert world.storage.committed() == [100_000, 99_999, 7]
    assert world.storage.latest() == 100_000


@pytest.mark.parametrize("damage", VISIBLE)
def test_a_damaged_newest_means_the_one_before(world: World, damage: Damage) -> None:
    commit(world.storage, 100)
    commit(world.storage, 200)

    damage(world, 200)

    assert world.storage.latest() == 100
    with pytest.raises((Damaged, BadManifest)):
        world.storage.verify(200)


def test_a_flipped_bit_is_found_by_the_hash(world: World) -> None:
    commit(world.storage, 100)
    flip_a_bit(world, 100)

    with pytest.raises(Damaged, match=r"worker_1\.pt: its bytes are not those"):
        world.storage.verify(100)
    with pytest.raises(Damaged):
        world.storage.read_shard(100, world.storage.manifest(100).shards[1])
    shard = world.storage.manifest(100).shards[1]
    assert len(world.storage.read_shard(100, shard, check=False)) == shard.size


def test_a_manifest_in_the_folder_of_another_step_is_refused(world: World) -> None:
    commit(world.storage, 100)
    commit(world.storage, 200)
    world.put("ckpt_step_00200/manifest.json", world.get("ckpt_step_00100/manifest.json"))

    with pytest.raises(BadManifest, match="of step 100, in the folder of step 200"):
        world.storage.manifest(200)
    assert world.storage.latest() == 100


def test_what_could_not_be_read_back_is_not_committed(world: World) -> None:
    draft = write(world.storage, 100)
    wrong = dataclasses.replace(manifest_of(100), job_id="two\nlines")

    with pytest.raises(BadManifest):
        world.storage.commit(draft, wrong)
    with pytest.raises(BadManifest):
        world.storage.commit(draft, manifest_of(200))

    assert world.storage.latest() is None


def test_what_is_removed_is_gone_and_the_rest_stays(world: World) -> None:
    commit(world.storage, 100)
    commit(world.storage, 200)

    world.storage.remove(100)
    world.storage.remove(100)

    assert world.whole() == {200: 0}
    assert not any(name.startswith("ckpt_step_00100") for name in world.names())


def test_drafts_of_older_generations_are_cleared(world: World) -> None:
    commit(world.storage, 100)
    write(world.storage, 100, generation=1)
    write(world.storage, 200, generation=1, attempt=3)
    write(world.storage, 200, generation=2)

    assert world.storage.clear_drafts(below=2) == ["ckpt_step_00100.g1-1", "ckpt_step_00200.g1-3"]
    assert world.storage.clear_drafts(below=2) == []

    assert world.whole() == {100: 0}
    assert world.storage.commit(Draft(200, 2, 1), manifest_of(200, 2))
    assert world.whole() == {100: 0, 200: 2}


def test_one_draft_is_discarded_but_never_a_checkpoint(world: World) -> None:
    commit(world.storage, 100)
    draft = write(world.storage, 200)

    world.storage.discard(draft)
    world.storage.discard(draft)
    world.storage.discard(Draft(100, 0, 1))

    assert world.whole() == {100: 0}
    with pytest.raises(Incomplete):
        world.storage.commit(draft, manifest_of(200))


def test_what_is_set_aside_keeps_its_own_name(world: World) -> None:
    places = []
    for _ in range(2):
        commit(world.storage, 100)
        places.append(world.storage.set_aside(100))

    bad = f"{world.storage.root}/ckpt_step_00100.bad"
    assert places == [bad, f"{bad}-2"]
    assert (world.storage.latest(), world.whole()) == (None, {})
    assert world.names() >= {"ckpt_step_00100.bad", "ckpt_step_00100.bad-2"}


def test_a_mark_is_seen_by_whoever_sees_the_store(world: World) -> None:
    world.storage.mark("host-a_1")

    assert (world.storage.sees("host-a_1"), world.storage.sees("host-b")) == (True, False)
    with pytest.raises(ValueError, match="not a mark"):
        world.storage.mark("../fence")


def test_a_write_that_was_given_up_can_be_done_again(world: World) -> None:
    class GivenUpError(Exception):
        pass

    def give_up() -> None:
        raise GivenUpError

    draft = Draft(100, 0, 1)
    whole = memoryview(memory(2 * CHUNK + 5))
    whole[-5:] = b"tail!"

    with pytest.raises(GivenUpError):
        world.storage.write_shard(draft, shard_name(0), [whole], give_up)
    paces: list[int] = []
    written = world.storage.write_shard(draft, shard_name(0), [whole], lambda: paces.append(1))

    assert world.get(world.draft(100, 0)) == bytes(whole)
    assert written == world.storage.write_shard(draft, shard_name(0), [whole[:9], whole[9:]])
    assert len(paces) >= 2


def test_a_large_shard_is_read_back_whole(world: World) -> None:
    whole = memoryview(memory(CHUNK + 3))
    for start in range(0, len(whole), 1000):
        whole[start] = start % 251
    draft = Draft(100, 0, 1)
    written = world.storage.write_shard(draft, shard_name(0), [whole])
    shard = Shard(shard_name(0), written.size, written.hash, 0)
    manifest = dataclasses.replace(manifest_of(100), world_size=1, shards=(shard,))
    world.storage.commit(draft, manifest)

    read = world.storage.read_shard(100, shard)

    assert (read == whole, read.readonly) == (True, False)
    world.storage.verify(100)


def test_names_of_shards_cannot_lead_elsewhere(world: World) -> None:
    commit(world.storage, 100)
    shard = world.storage.manifest(100).shards[0]

    for name in ("../fence", "/etc/passwd", "worker_0.pt/../x", "worker_00.pt", "manifest.json"):
        with pytest.raises(ValueError, match="not the name of a shard"):
            world.storage.write_shard(Draft(100, 0, 1), name, [])
        with pytest.raises(ValueError, match="not the name of a shard"):
            world.storage.read_shard(100, dataclasses.replace(shard, name=name))


def test_of_many_commits_of_one_step_one_wins(world: World) -> None:
    drafts = [write(world.storage, 100, generation) for generation in range(6)]
    ends: dict[int, object] = {}

    def go(draft: Draft) -> None:
        try:
            ends[draft.generation] = world.storage.commit(draft, manifest_of(100, draft.generation))
        except CheckpointError as error:
            ends[draft.generation] = type(error)

    threads = [threading.Thread(target=go, args=(draft,)) for draft in drafts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    winners = [generation for generation, end in ends.items() if isinstance(end, str)]
    assert len(winners) == 1
    assert [end for end in ends.values() if not isinstance(end, str)] == [AlreadyCommitted] * 5
    assert world.whole() == {100: winners[0]}
