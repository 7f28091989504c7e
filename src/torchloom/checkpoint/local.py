"""Checkpoints in a folder: written under another name, then renamed in one step.

Commit, fence and removal hold one lock of the root, so that a generation that has been replaced
cannot slip in behind the fence. Nothing but a rename makes a checkpoint, or ends it.
"""

import contextlib
import errno
from collections.abc import Iterator, Sequence

from torchloom.checkpoint import stream
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
from torchloom.checkpoint.layout import MANIFEST, Draft, draft_of, folder_name, rank_of
from torchloom.checkpoint.manifest import Manifest
from torchloom.checkpoint.reader import LocalReader, is_mark, mark_name
from torchloom.checkpoint.storage import Pace, Written, sealed

_FENCE = "fence"
_PARTIAL = ".fence.partial"
_LOCK = ".lock"
_GONE = ".gone-"  # before the name of what is being deleted
# It is gone already, a process writes there, or it is not ours: the next removal tries again.
_LATER = (errno.ENOENT, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR)


class LocalStorage(LocalReader):
    """The checkpoints of one run in one folder, which ranks on several hosts may share."""

    def write_shard(
        self, draft: Draft, name: str, buffers: Sequence[memoryview], pace: Pace | None = None
    ) -> Written:
        """Write one rank's bytes into a draft; they are durable on return."""
        disk = self._disk
        if rank_of(name) is None:
            raise ValueError(f"not the name of a shard: {name!r}")
        with self._opened(make=True) as root:
            disk.make_folder(root, draft.name)
            with self._closing(disk.open_folder(root, draft.name)) as folder:
                with self._closing(disk.open_write(folder, name, direct=True)) as descriptor:
                    written = stream.write(disk, descriptor, buffers, pace)
                    disk.sync(descriptor)
                disk.sync(folder)
        return written

    def written(self, draft: Draft) -> set[str]:
        """Return the names of the shards that a draft has, also of those being written."""
        with contextlib.suppress(NotCommitted), self._opened() as root:
            if self._disk.exists(root, draft.name):
                with self._closing(self._disk.open_folder(root, draft.name)) as folder:
                    names = self._disk.names(folder)
                return {name for name in names if rank_of(name) is not None}
        return set()

    def commit(self, draft: Draft, manifest: Manifest) -> str:
        """Make the draft the checkpoint of its step, all at once, and return its place."""
        manifest, text = sealed(draft, manifest)
        disk = self._disk
        try:
            with self._opened() as root, self._locked(root):
                if not self._stands(root, manifest):
                    self._check_fence(root, draft.generation)
                    self._check_draft(root, manifest)
                    self._seal(root, draft, text)
                    self._make_way(root, draft.step)
                    disk.rename_new(root, draft.name, folder_name(draft.step))
                disk.sync(root)
        except NotCommitted:
            raise Incomplete(draft.step, draft.name, "does not exist") from None
        return self.place_of(draft.step)

    def fence(self, generation: int) -> None:
        """Refuse commits of generations older than this one from now on."""
        disk = self._disk
        with self._opened(make=True) as root, self._locked(root):
            if generation > self._fence(root):
                self._write(root, _PARTIAL, f"{generation}\n".encode())
                disk.replace(root, _PARTIAL, _FENCE)
            disk.sync(root)

    def remove(self, step: int) -> None:
        """Delete a checkpoint: it loses its name before any byte of it is deleted."""
        with contextlib.suppress(NotCommitted), self._opened() as root, self._locked(root):
            self._delete(root, folder_name(step))

    def set_aside(self, step: int) -> str:
        """Rename a damaged checkpoint, and return its new place."""
        with self._opened(step=step) as root, self._locked(root):
            if not self._disk.exists(root, folder_name(step)):
                raise NotCommitted(self.root, step)
            return f"{self.root}/{self._set_aside(root, step)}"

    def clear_drafts(self, below: int) -> list[str]:
        """Delete what writers of older generations, and removals, left; return their names."""
        cleared: list[str] = []
        with contextlib.suppress(NotCommitted), self._opened() as root, self._locked(root):
            for name in self._disk.names(root):
                draft = draft_of(name)
                if draft is not None and draft.generation < below:
                    self._delete(root, name)
                    cleared.append(name)
                elif name.startswith(_GONE):
                    self._empty(root, name)
                elif is_mark(name):
                    self._disk.unlink(root, name)
        return sorted(cleared)

    def discard(self, draft: Draft) -> None:
        """Delete one draft that will not be committed; one that does not exist is fine."""
        with contextlib.suppress(NotCommitted), self._opened() as root, self._locked(root):
            self._delete(root, draft.name)

    def mark(self, nonce: str) -> None:
        """Leave a mark, by which other hosts check that they see the same folder."""
        with self._opened(make=True) as root:
            self._write(root, mark_name(nonce), b"")
            self._disk.sync(root)

    def _stands(self, root: int, manifest: Manifest) -> bool:
        """Tell whether this very checkpoint is committed."""
        try:
            if self._manifest(root, manifest.step) != manifest:
                return False
            self._check_sizes(root, manifest)
        except (NotCommitted, BadManifest, Damaged):
            return False
        return True

    def _check_fence(self, root: int, generation: int) -> None:
        fence = self._fence(root)
        if fence > generation:
            raise Fenced(generation, fence)

    def _check_draft(self, root: int, manifest: Manifest) -> None:
        disk = self._disk
        if not disk.exists(root, manifest.draft.name):
            self._require_other(root, manifest)
            raise Incomplete(manifest.step, manifest.draft.name, "does not exist")
        with self._closing(disk.open_folder(root, manifest.draft.name)) as folder:
            for shard in manifest.shards:
                size = disk.size_at(folder, shard.name)
                if size != shard.size:
                    had = "is missing" if size is None else f"has {size} bytes, not {shard.size}"
                    raise Incomplete(manifest.step, shard.name, had)

    def _require_other(self, root: int, manifest: Manifest) -> None:
        """Without a draft: a folder that is there, but could not be read, may be this commit's."""
        with contextlib.suppress(NotCommitted):
            try:
                other = self._manifest(root, manifest.step) != manifest
            except BadManifest:
                other = False
            if not other:
                raise StoreUnavailable(self.root, f"step {manifest.step} could not be read")

    def _seal(self, root: int, draft: Draft, text: bytes) -> None:
        """Write the manifest into the draft; all of it is durable then."""
        with self._closing(self._disk.open_folder(root, draft.name)) as folder:
            self._write(folder, MANIFEST, text)
            self._disk.sync(folder)

    def _make_way(self, root: int, step: int) -> None:
        """Set a damaged checkpoint of this step aside; an intact one stays."""
        if not self._disk.exists(root, folder_name(step)):
            return
        try:
            self._verify(root, step)
        except (Damaged, BadManifest, NotCommitted):
            self._set_aside(root, step)
        else:
            raise AlreadyCommitted(self.root, step)

    def _fence(self, root: int) -> int:
        try:
            with self._closing(self._disk.open_read(root, _FENCE)) as descriptor:
                text = self._text(descriptor, 32)
        except FileNotFoundError:
            return 0
        if not text.strip().isdigit():
            remedy = "write the newest generation of the run into it"
            raise CheckpointError(f"{self.root}/{_FENCE} is not a number; {remedy}")
        return int(text)

    def _write(self, folder: int, name: str, text: bytes) -> None:
        """Write a small file; its bytes are durable then, its name is not."""
        disk = self._disk
        with self._closing(disk.open_write(folder, name)) as descriptor:
            view = memoryview(text)
            while view:
                view = view[disk.write(descriptor, view) :]
            disk.sync(descriptor)

    def _set_aside(self, root: int, step: int) -> str:
        name = folder_name(step)
        taken = set(self._disk.names(root))
        others = (f"{name}.bad-{number}" for number in range(2, len(taken) + 3))
        bad = next(other for other in (f"{name}.bad", *others) if other not in taken)
        self._disk.rename_new(root, name, bad)
        self._disk.sync(root)
        return bad

    def _delete(self, root: int, name: str) -> None:
        """Delete a folder: first, durably, its name, so that no half of it is seen ever again."""
        disk = self._disk
        gone = f"{_GONE}{name}"
        if disk.exists(root, gone):
            self._empty(root, gone)
        if disk.exists(root, name):
            disk.rename_new(root, name, gone)
            disk.sync(root)
            self._empty(root, gone)

    def _empty(self, root: int, gone: str) -> None:
        disk = self._disk
        try:
            with self._closing(disk.open_folder(root, gone)) as folder:
                for name in disk.names(folder):
                    disk.unlink(folder, name)
            disk.remove_folder(root, gone)
        except OSError as error:
            if error.errno not in _LATER:
                raise

    @contextlib.contextmanager
    def _locked(self, root: int) -> Iterator[None]:
        with self._closing(self._disk.open_lock(root, _LOCK)) as descriptor:
            self._disk.lock(descriptor)
            yield
