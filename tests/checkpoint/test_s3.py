"""What only S3 has: conditions a server may ignore, requests that race, servers that are gone."""

from collections.abc import Callable
from typing import Any

import pytest

from torchloom.checkpoint import (
    AlreadyCommitted,
    CheckpointError,
    Draft,
    Fenced,
    S3Storage,
    StoreUnavailable,
    open_storage,
)
from torchloom.checkpoint.bucket import Bucket

from ..harness.s3_server import S3Server, bucket, environment
from .scenarios import commit, manifest_of, write
from .worlds import S3World, garble_the_manifest

pytestmark = [pytest.mark.process, pytest.mark.needs("s3")]


@pytest.fixture
def world(s3_server: S3Server, request: pytest.FixtureRequest) -> S3World:
    """Give an empty prefix."""
    return S3World(s3_server, f"alone/{request.node.name.replace('[', '-').rstrip(']')}")


def _with(world: S3World, server: S3Server, kind: type[Bucket]) -> S3Storage:
    return S3Storage(world.storage.root, kind(world.storage.root, bucket(server.endpoint)))


def test_the_server_honours_conditions(s3_server: S3Server, world: S3World) -> None:
    here = Bucket(world.storage.root, bucket(s3_server.endpoint))

    assert [here.put_new("one", b"a"), here.put_new("one", b"b")] == [True, False]
    found = here.get("one", 10)
    assert found is not None
    assert here.replace("one", b"c", found.tag) is True
    assert here.replace("one", b"d", found.tag) is False
    assert here.replace("none", b"d", found.tag) is False
    assert world.get("one") == b"c"


@pytest.mark.parametrize("ignored", ["put_new", "replace"])
def test_a_server_that_ignores_conditions_is_refused(
    s3_server: S3Server, world: S3World, ignored: str
) -> None:
    def careless(self: Bucket, key: str, data: bytes, *_: Any) -> bool:
        self.put(key, [memoryview(data)], len(data))
        return True

    storage = _with(world, s3_server, type("Careless", (Bucket,), {ignored: careless}))
    draft = write(storage, 100)

    with pytest.raises(CheckpointError, match="ignores If-None-Match or If-Match"):
        storage.commit(draft, manifest_of(100))
    assert world.storage.latest() is None


def _interrupted(before: str, act: Callable[[], object]) -> type[Bucket]:
    """Return a bucket in which something else happens just before a manifest is put."""

    class Interrupted(Bucket):
        pass

    def call(self: Bucket, key: str, *args: Any) -> bool:
        if key.endswith("/manifest.json") and not key.startswith("ckpt_step_00200.bad"):
            act()
        return bool(getattr(Bucket, before)(self, key, *args))

    setattr(Interrupted, before, call)
    return Interrupted


def test_a_commit_cannot_slip_in_behind_a_fence(s3_server: S3Server, world: S3World) -> None:
    def restart() -> None:
        world.storage.fence(1)
        assert world.storage.clear_drafts(1) == ["ckpt_step_00200.g0-1"]
        assert world.storage.latest() == 100

    commit(world.storage, 100)
    late = _with(world, s3_server, _interrupted("put_new", restart))
    draft = write(late, 200)

    with pytest.raises(Fenced):
        late.commit(draft, manifest_of(200))

    assert world.storage.latest() == 100
    commit(world.storage, 200, generation=1)
    assert world.whole() == {100: 0, 200: 1}


def test_a_commit_before_a_fence_is_kept_by_clearing(s3_server: S3Server, world: S3World) -> None:
    write(world.storage, 200)
    storage = world.storage

    class Late(Bucket):
        def put_new(self, key: str, data: bytes) -> bool:
            """Have the old generation commit just before its draft is declared void."""
            if not data:
                storage.commit(Draft(200, 0, 1), manifest_of(200))
            return super().put_new(key, data)

    clearing = _with(world, s3_server, Late)

    assert clearing.clear_drafts(1) == []
    assert world.whole() == {200: 0}


def test_of_two_that_replace_a_damaged_one_the_second_gives_way(
    s3_server: S3Server, world: S3World
) -> None:
    commit(world.storage, 200)
    garble_the_manifest(world, 200)
    other = _interrupted("replace", lambda: commit(world.storage, 200, generation=2))
    second = _with(world, s3_server, other)
    draft = write(second, 200, generation=1)

    with pytest.raises(AlreadyCommitted):
        second.commit(draft, manifest_of(200, 1))

    assert world.whole() == {200: 2}


def test_a_manifest_that_is_too_large_is_not_read_whole(
    s3_server: S3Server, world: S3World
) -> None:
    world.put("big", b"x" * 1000)

    found = Bucket(world.storage.root, bucket(s3_server.endpoint)).get("big", 10)

    assert found is not None
    assert found.data == b"x" * 10


def test_a_server_that_is_gone_is_unavailable_not_empty() -> None:
    storage = open_storage("s3://loom-test/x", environment("http://127.0.0.1:1"))

    for ask in (storage.latest, storage.committed, lambda: storage.manifest(5)):
        with pytest.raises(StoreUnavailable, match="loom-test"):
            ask()


def test_a_wrong_key_is_said_and_not_shown(s3_server: S3Server) -> None:
    env = {**s3_server.env, "AWS_SECRET_ACCESS_KEY": "not-the-right-one"}

    with pytest.raises(StoreUnavailable) as caught:
        open_storage(s3_server.url("x"), env).latest()

    assert "not-the-right-one" not in str(caught.value)
