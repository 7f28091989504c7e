"""Checkpoints in S3: shards under the name of their writer, and one manifest that only one can put.

A bucket has no rename and no lock. What a rename does in a folder, a conditional put of the
manifest does here: where there is none (`If-None-Match: *`), or in place of the very one that was
found damaged (`If-Match`). An empty manifest is no checkpoint: it voids any commit of this step
that is under way, so that one that began before a fence cannot end after it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchloom.checkpoint import stream
from torchloom.checkpoint.bucket import Bucket, StoredObject
from torchloom.checkpoint.errors import (
    AlreadyCommitted,
    BadManifest,
    CheckpointError,
    Damaged,
    Fenced,
    Incomplete,
    NotCommitted,
    StoreUnavailable,
)
from torchloom.checkpoint.layout import MANIFEST, Draft, folder_name, rank_of, step_of, writer_of
from torchloom.checkpoint.manifest import LARGEST_TEXT, Manifest, Shard
from torchloom.checkpoint.reader import compare, mark_name, require_trainer_files
from torchloom.checkpoint.storage import OnRead, Pace, Written, sealed

_FENCE = "fence"  # a folder with one object for each generation: the highest counts
_PROBE = "conditions"
_TRIES = 3


class S3Storage:
    """The checkpoints of one run below one prefix of a bucket."""

    def __init__(self, root: str, bucket: Bucket) -> None:
        self.root = root
        self._bucket = bucket

    @classmethod
    def at(cls, root: str, env: Mapping[str, str]) -> "S3Storage":
        """Return the store at an S3 URL, with the keys and the address in the usual variables."""
        return cls(root, Bucket.at(root, env))

    def write_shard(
        self, draft: Draft, name: str, buffers: Sequence[memoryview], pace: Pace | None = None
    ) -> Written:
        """Upload one rank's bytes under the draft's name; they are durable on return."""
        if rank_of(name) is None:
            raise ValueError(f"not the name of a shard: {name!r}")
        hashing = stream.Hashing(buffers, self._bucket.part, pace)
        try:
            self._bucket.put(f"{_shards(draft)}/{name}", hashing, sum(map(len, _flat(buffers))))
        except StoreUnavailable:
            if hashing.failed is not None:  # in the middle: not the store's fault
                raise hashing.failed from None
            raise
        return hashing.written

    def written(self, draft: Draft) -> set[str]:
        """Return the names of the shards that a draft has."""
        return {name for name in self._bucket.sizes(_shards(draft)) if rank_of(name) is not None}

    def commit(self, draft: Draft, manifest: Manifest) -> str:
        """Put the manifest where there is none, so that all its shards are the checkpoint."""
        manifest, text = sealed(draft, manifest)
        self._require_conditions()
        for _ in range(_TRIES):
            if self._committed_by(manifest, text):
                return self.place_of(draft.step)
        raise StoreUnavailable(self.root, f"the manifest of step {draft.step} keeps changing")

    def fence(self, generation: int) -> None:
        """Refuse commits of generations older than this one from now on."""
        self._bucket.put(f"{_FENCE}/{generation}", [memoryview(b"fence\n")], 6)

    def committed(self) -> list[int]:
        """Return the steps that have a manifest, newest first."""
        steps = [step for name in self._bucket.folders() if (step := step_of(name)) is not None]
        return sorted((step for step in steps if self._bucket.size(_key(step))), reverse=True)

    def manifest(self, step: int) -> Manifest:
        """Return what is committed of a step."""
        found = self._found(step)
        if found is None or not found.data:
            raise NotCommitted(self.root, step)
        return _read(step, found)

    def place_of(self, step: int) -> str:
        """Return where the checkpoint of a step is, or would be."""
        return f"{self.root}/{folder_name(step)}"

    def read_shard(self, step: int, shard: Shard, check: bool = True) -> memoryview:
        """Return the bytes of a shard in memory of its own."""
        with self._shard(step, shard) as fill:
            whole, got, content = stream.read(shard.size, fill, check)
            got += fill(memoryview(bytearray(1)))
        compare(step, shard, got, content if check else shard.hash)
        return whole

    def verify(self, step: int, on_read: OnRead | None = None) -> None:
        """Read and hash everything of a step."""
        manifest = self.manifest(step)
        self._check_sizes(manifest)
        for shard in manifest.shards:
            with self._shard(step, shard, manifest.draft) as fill:
                compare(step, shard, *stream.hash_of(fill, on_read))
        if manifest.trainer is not None:
            manifest.trainer.verify(step, on_read)

    def latest(self) -> int | None:
        """Return the newest step whose manifest can be read and whose shards have their sizes."""
        for step in self.committed():
            with contextlib.suppress(BadManifest, NotCommitted, Damaged):
                manifest = self.manifest(step)
                self._check_sizes(manifest)
                require_trainer_files(manifest)
                return step
        return None

    def remove(self, step: int) -> None:
        """Delete a checkpoint: the manifest first, so that no half of it is a checkpoint."""
        found = self._found(step)
        if found is None:
            return
        self._bucket.delete([_key(step)])
        with contextlib.suppress(BadManifest):
            folder = _shards(_read(step, found).draft)
            self._bucket.delete(f"{folder}/{name}" for name in self._bucket.sizes(folder))

    def set_aside(self, step: int) -> str:
        """Put a damaged checkpoint's manifest elsewhere; its shards stay where they are."""
        found = self._found(step)
        if found is None or not found.data:
            raise NotCommitted(self.root, step)
        place = self._keep_aside(step, found)
        if not self._bucket.replace(_key(step), b"", found.tag):
            raise StoreUnavailable(self.root, f"the manifest of step {step} has just changed")
        return place

    def clear_drafts(self, below: int) -> list[str]:
        """Delete what writers of older generations, and removals, left; return their names."""
        cleared = []
        for folder in self._bucket.folders():
            step = step_of(folder)
            if step is None:
                continue
            for draft, names in self._stale(step, below).items():
                self._bucket.delete(names)
                cleared.append(draft.name)
        return sorted(cleared)

    def discard(self, draft: Draft) -> None:
        """Delete one draft that will not be committed; one that is not there is fine."""
        found = self._found(draft.step)
        if found is None or not found.data or _read(draft.step, found).draft != draft:
            folder = _shards(draft)
            self._bucket.delete(f"{folder}/{name}" for name in self._bucket.sizes(folder))

    def mark(self, nonce: str) -> None:
        """Leave a mark, by which other hosts check that they see the same bucket."""
        self._bucket.put(mark_name(nonce), [memoryview(b"mark\n")], 5)

    def sees(self, nonce: str) -> bool:
        """Tell whether the mark can be seen from here."""
        return self._bucket.size(mark_name(nonce)) is not None

    def _require_conditions(self) -> None:
        """Refuse a store that ignores conditions: two commits of one step would both succeed."""
        bucket = self._bucket
        if not bucket.put_new(_PROBE, b"put if absent\n"):
            return
        if bucket.put_new(_PROBE, b"ignored\n") or bucket.replace(_PROBE, b"ignored\n", '"0"'):
            raise CheckpointError(
                f"the store of {self.root} ignores If-None-Match or If-Match, without which a "
                "commit is not safe; use another S3 server, or a folder"
            )

    def _committed_by(self, manifest: Manifest, text: bytes) -> bool:
        """Try to commit once, from what is there to what shall be; False when that changed."""
        bucket, key = self._bucket, _key(manifest.step)
        found = self._found(manifest.step)
        if found is not None and self._stands(manifest, found):
            return True
        self._check_fence(manifest.generation)
        self._check_draft(manifest)
        if found is None:
            done = bucket.put_new(key, text)
        else:
            if found.data:
                self._make_way(manifest.step, found)
            done = bucket.replace(key, text, found.tag)
        if done:
            self._check_fence(manifest.generation)
        return done

    def _stands(self, manifest: Manifest, found: StoredObject) -> bool:
        try:
            if _read(manifest.step, found) != manifest:
                return False
            self._check_sizes(manifest)
        except (BadManifest, Damaged):
            return False
        return True

    def _check_fence(self, generation: int) -> None:
        names = [name for name in self._bucket.sizes(_FENCE) if name.isdecimal()]
        fence = max(map(int, names), default=0)
        if fence > generation:
            raise Fenced(generation, fence)

    def _check_draft(self, manifest: Manifest) -> None:
        try:
            self._check_sizes(manifest)
        except Damaged as error:
            raise Incomplete(manifest.step, error.name, error.why) from None

    def _make_way(self, step: int, found: StoredObject) -> None:
        try:
            self.verify(step)
        except (Damaged, BadManifest, NotCommitted):
            self._keep_aside(step, found)
        else:
            raise AlreadyCommitted(self.root, step)

    def _keep_aside(self, step: int, found: StoredObject) -> str:
        for number in range(1, 1000):
            folder = f"{folder_name(step)}.bad" + (f"-{number}" if number > 1 else "")
            if self._bucket.put_new(f"{folder}/{MANIFEST}", found.data):
                break
        return f"{self.root}/{folder}"

    def _stale(self, step: int, below: int) -> dict[Draft, list[str]]:
        """Return older drafts of a step with their keys, once none of them can be committed."""
        drafts: dict[Draft, list[str]] = {}
        for name in self._bucket.sizes(folder_name(step)):
            draft = writer_of(step, name.partition("/")[0])
            if draft is not None and draft.generation < below:
                drafts.setdefault(draft, []).append(f"{folder_name(step)}/{name}")
        if drafts and not self._bucket.put_new(_key(step), b""):
            found = self._found(step)
            if found is None:
                return {}  # removed in between: next time
            if found.data:
                try:
                    drafts.pop(_read(step, found).draft, None)
                except BadManifest:
                    return {}  # which of them it names is unknown
        return drafts

    def _check_sizes(self, manifest: Manifest) -> None:
        sizes = self._bucket.sizes(_shards(manifest.draft))
        for shard in manifest.shards:
            if shard.name not in sizes:
                raise Damaged(manifest.step, shard.name, "is missing")
            compare(manifest.step, shard, sizes[shard.name], shard.hash)

    def _found(self, step: int) -> StoredObject | None:
        return self._bucket.get(_key(step), LARGEST_TEXT + 1)

    @contextlib.contextmanager
    def _shard(
        self, step: int, shard: Shard, draft: Draft | None = None
    ) -> Iterator[Callable[[memoryview], int]]:
        if rank_of(shard.name) is None:
            raise ValueError(f"not the name of a shard: {shard.name!r}")
        folder = _shards(draft or self.manifest(step).draft)
        try:
            yield stream.filling(self._bucket.parts(f"{folder}/{shard.name}"))
        except FileNotFoundError:
            raise Damaged(step, shard.name, "is missing") from None


def _key(step: int) -> str:
    return f"{folder_name(step)}/{MANIFEST}"


def _shards(draft: Draft) -> str:
    return f"{folder_name(draft.step)}/{draft.writer}"


def _read(step: int, found: StoredObject) -> Manifest:
    manifest = Manifest.from_json(found.data)
    if manifest.step != step:
        raise BadManifest(f"it is of step {manifest.step}, in the folder of step {step}")
    return manifest


def _flat(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    return (buffer.cast("B") for buffer in buffers)
