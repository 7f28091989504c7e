"""An agent commits and removes what it is told to, in a real folder, and says what became of it."""

import asyncio
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from blake3 import blake3

from torchloom.checkpoint import Manifest, Shard
from torchloom.launch.node_agent.checkpoints import CheckpointWorker
from torchloom.messages.plane import VERSION, Commit, Committed, Head, Message, Remove, Removed

from ...harness.async_wait import come_true

HEAD = Head(VERSION, "job-1", 0, -1, "")


def shard(root: Path, step: int, generation: int = 0, text: bytes = b"weights") -> Shard:
    """Write a shard into a draft by hand; return what its rank would say of it."""
    draft = root / f"ckpt_step_{step:05d}.g{generation}-1"
    draft.mkdir(parents=True)
    (draft / "worker_0.pt").write_bytes(text)
    return Shard("worker_0.pt", len(text), f"blake3:{blake3(text).hexdigest()}", 0)


def commit(
    root: Path, step: int, written: Shard, generation: int = 0, clears: bool = False
) -> Commit:
    manifest = Manifest(
        job_id="job-1",
        run_id="job-1",
        step=step,
        epoch=0,
        world_size=1,
        strategy="ddp",
        backend="gloo",
        shards=(written,),
        optimizer_state=True,
        rng_state=True,
        generation=generation,
        attempt=1,
        created_at="2026-01-31T12:00:00+00:00",
    )
    text = zlib.compress(manifest.to_json().encode())
    return Commit(HEAD, 1, str(root), step, generation, 1, text, clears)


async def done(*wanted: Commit | Remove) -> list[Message]:
    """Return what an agent says to what it is told, all of it at once."""
    said: list[Message] = []

    async def publish(message: Message) -> None:
        said.append(message)

    storing = CheckpointWorker("here", publish, {})
    for each in wanted:
        storing.take(each)
    assert storing.is_busy
    await come_true(lambda: not storing.is_busy)
    await storing.close()
    return said


def test_a_draft_is_committed_once_however_often_that_is_said(tmp_path: Path) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    wanted = commit(root, 100, shard(root, 100))

    said = asyncio.run(done(wanted, wanted))
    again = asyncio.run(done(wanted))

    place = root / "ckpt_step_00100"
    assert said == again == [Committed(HEAD, "here", 100, 0, 1, str(place))]
    assert sorted(path.name for path in place.iterdir()) == ["manifest.json", "worker_0.pt"]
    (listed,) = json.loads((place / "manifest.json").read_text())["shards"]
    assert listed["hash"] == f"blake3:{blake3((place / 'worker_0.pt').read_bytes()).hexdigest()}"


def test_what_is_removed_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    wanted = commit(root, 100, shard(root, 100))

    said = asyncio.run(done(wanted, Remove(HEAD, 1, str(root), 100, 0, 1)))
    again = asyncio.run(done(Remove(HEAD, 1, str(root), 100, 0, 1)))

    assert [type(each) for each in said] == [Committed, Removed]
    assert said[1:] == again == [Removed(HEAD, "here", 100, 0, 1)]
    assert not (root / "ckpt_step_00100").exists()


def test_a_removal_that_comes_late_leaves_what_has_taken_its_place(tmp_path: Path) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    gone = Remove(HEAD, 1, str(root), 100, 0, 1)
    first = commit(root, 100, shard(root, 100))
    asyncio.run(done(first, gone))
    later = commit(root, 100, shard(root, 100, 1), 1)

    said = asyncio.run(done(later, gone))

    assert said[1] == Removed(HEAD, "here", 100, 0, 1)
    assert (root / "ckpt_step_00100" / "worker_0.pt").read_bytes() == b"weights"


def test_another_checkpoint_of_the_step_stays_and_the_draft_goes(tmp_path: Path) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    first = commit(root, 100, shard(root, 100))
    other = commit(root, 100, shard(root, 100, 1, b"others"), 1)

    said = asyncio.run(done(first, other))

    assert [getattr(each, "code", "") for each in said] == ["", "already_committed"]
    assert (root / "ckpt_step_00100" / "worker_0.pt").read_bytes() == b"weights"
    assert [path.name for path in root.glob("*.g*")] == []


def test_what_an_older_generation_did_not_end_goes_with_the_first_commit_behind_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    shard(root, 100), shard(root, 110, 2)
    waits = commit(root, 120, shard(root, 120, 1), 1)
    clears = commit(root, 130, shard(root, 130, 1), 1, clears=True)

    asyncio.run(done(waits))
    before = sorted(path.name for path in root.glob("*.g*"))
    asyncio.run(done(clears))

    assert before == ["ckpt_step_00100.g0-1", "ckpt_step_00110.g2-1", "ckpt_step_00130.g1-1"]
    assert [path.name for path in root.glob("*.g*")] == ["ckpt_step_00110.g2-1"]


def test_what_cannot_be_done_is_said_by_its_code(tmp_path: Path) -> None:
    root = tmp_path / "job-1" / "checkpoints"
    written = shard(root, 100)
    (root / "ckpt_step_00100.g0-1" / "worker_0.pt").unlink()
    garbled = Commit(HEAD, 1, str(root), 300, 0, 1, b"no zlib")
    elsewhere = commit(tmp_path / "other" / "checkpoints", 200, written)
    outside = commit(tmp_path, 100, written)
    relative = Remove(HEAD, 1, "job-1/checkpoints", 1, 0, 1)

    said = asyncio.run(done(commit(root, 100, written), garbled, elsewhere, outside, relative))

    assert sorted(getattr(each, "code", "") for each in said) == [
        "bad_checkpoint_root",
        "bad_checkpoint_root",
        "bad_manifest",
        "incomplete_checkpoint",
        "not_seen",
    ]
    assert not (tmp_path / "other").exists()


@pytest.mark.process
def test_an_agent_that_never_commits_does_not_import_what_that_needs() -> None:
    program = (
        "import sys, torchloom.launch.node_agent.service\n"
        "print([n for n in ('obstore', 'blake3', 'torchloom.checkpoint') if n in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert found.stdout == "[]\n"
