"""Read checkpoints in a folder; nothing is changed."""

import contextlib
import errno
import re
from collections.abc import Callable, Iterator

from torchloom.checkpoint import stream
from torchloom.checkpoint.errors import (
    BadManifest,
    BadRoot,
    Damaged,
    NotCommitted,
    StoreUnavailable,
)
from torchloom.checkpoint.layout import MANIFEST, folder_name, rank_of, step_of
from torchloom.checkpoint.manifest import LARGEST_TEXT, Manifest, Shard
from torchloom.checkpoint.storage import OnRead
from torchloom.checkpoint.stream import Disk

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # not there, or not what it should be
_BROKEN = (*_ABSENT, errno.EIO, errno.EINVAL, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO))
_MARK = ".mark-"
_NONCE = re.compile("[A-Za-z0-9_-]{1,64}")


class LocalReader:
    """The reading half of a local store. A root that is not there has no checkpoints."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        if not root.startswith("/") or "\0" in root:
            raise BadRoot(f"not an absolute folder for checkpoints: {root[:200]!r}")
        self.root = root
        self._disk = disk or Disk()

    def committed(self) -> list[int]:
        """Return the steps that have a manifest, newest first."""
        with contextlib.suppress(NotCommitted), self._opened() as root:
            return self._committed(root)
        return []

    def manifest(self, step: int) -> Manifest:
        """Return what is committed of a step."""
        with self._opened(step=step) as root:
            return self._manifest(root, step)

    def place_of(self, step: int) -> str:
        """Return where the checkpoint of a step is, or would be."""
        return f"{self.root}/{folder_name(step)}"

    def read_shard(self, step: int, shard: Shard, check: bool = True) -> memoryview:
        """Return the bytes of a shard in private pages, which change for this process alone."""
        with self._opened(step=step) as root, self._shard(root, step, shard) as descriptor:
            whole, got, content = stream.mapped(descriptor, shard.size, check) or stream.read(
                shard.size, self._filling(descriptor), check
            )
        compare(step, shard, got, content if check else shard.hash)
        return whole

    def verify(self, step: int, on_read: OnRead | None = None) -> None:
        """Read and hash everything of a step."""
        with self._opened(step=step) as root:
            self._verify(root, step, on_read)

    def latest(self) -> int | None:
        """Return the newest step whose manifest can be read and whose shards have their sizes."""
        with contextlib.suppress(NotCommitted), self._opened() as root:
            for step in self._committed(root):
                with contextlib.suppress(BadManifest, NotCommitted, Damaged):
                    manifest = self._manifest(root, step)
                    self._check_sizes(root, manifest)
                    require_trainer_files(manifest)
                    return step
        return None

    def sees(self, nonce: str) -> bool:
        """Tell whether the mark can be seen from here."""
        with contextlib.suppress(NotCommitted), self._opened() as root:
            return self._disk.exists(root, mark_name(nonce))
        return False

    def _committed(self, root: int) -> list[int]:
        found = []
        for name in self._disk.names(root):
            step = step_of(name)
            if step is not None:
                with contextlib.suppress(NotCommitted), self._checkpoint(root, step) as folder:
                    if self._disk.size_at(folder, MANIFEST) is not None:
                        found.append(step)
        return sorted(found, reverse=True)

    def _manifest(self, root: int, step: int) -> Manifest:
        disk = self._disk
        with self._checkpoint(root, step) as folder:
            try:
                with self._closing(disk.open_read(folder, MANIFEST)) as descriptor:
                    text = self._text(descriptor, LARGEST_TEXT + 1)
            except FileNotFoundError:
                raise NotCommitted(self.root, step) from None
            except OSError as error:
                if error.errno in _BROKEN:
                    raise BadManifest(f"step {step}: {error.strerror}") from None
                raise
        manifest = Manifest.from_json(text)
        if manifest.step != step:
            raise BadManifest(f"it is of step {manifest.step}, in the folder of step {step}")
        return manifest

    def _check_sizes(self, root: int, manifest: Manifest) -> None:
        with self._checkpoint(root, manifest.step) as folder:
            for shard in manifest.shards:
                size = self._disk.size_at(folder, shard.name)
                if size is None:
                    raise Damaged(manifest.step, shard.name, "is missing")
                compare(manifest.step, shard, size, shard.hash)

    def _verify(self, root: int, step: int, on_read: OnRead | None = None) -> None:
        manifest = self._manifest(root, step)
        self._check_sizes(root, manifest)
        for shard in manifest.shards:
            with self._shard(root, step, shard) as descriptor:
                size, content = stream.hash_of(self._filling(descriptor), on_read)
            compare(step, shard, size, content)
        if manifest.trainer is not None:
            manifest.trainer.verify(step, on_read)

    def _filling(self, descriptor: int) -> Callable[[memoryview], int]:
        return lambda view: self._disk.read_into(descriptor, view)

    @contextlib.contextmanager
    def _shard(self, root: int, step: int, shard: Shard) -> Iterator[int]:
        """Yield a descriptor of a shard; what is wrong with this file alone raises Damaged."""
        disk = self._disk
        if rank_of(shard.name) is None:
            raise ValueError(f"not the name of a shard: {shard.name!r}")
        with self._checkpoint(root, step) as folder:
            try:
                with self._closing(disk.open_read(folder, shard.name)) as descriptor:
                    compare(step, shard, disk.size(descriptor), shard.hash)
                    yield descriptor
            except OSError as error:
                if error.errno in _BROKEN:
                    raise Damaged(step, shard.name, error.strerror or str(error)) from None
                raise

    @contextlib.contextmanager
    def _checkpoint(self, root: int, step: int) -> Iterator[int]:
        try:
            descriptor = self._disk.open_folder(root, folder_name(step))
        except OSError as error:
            if error.errno in _ABSENT:
                raise NotCommitted(self.root, step) from None
            raise
        with self._closing(descriptor):
            yield descriptor

    def _text(self, descriptor: int, most: int) -> bytes:
        """Return what a small file holds, or its first bytes."""
        size = min(self._disk.size(descriptor), most)
        whole = bytearray(size)
        filled = 0
        with memoryview(whole) as view:
            while filled < size and (got := self._disk.read_into(descriptor, view[filled:])):
                filled += got
        return bytes(whole[:filled])

    @contextlib.contextmanager
    def _opened(self, make: bool = False, step: int = 0) -> Iterator[int]:
        """Yield the root's descriptor; an OSError inside the block becomes an error of ours."""
        try:
            if make:
                self._disk.make_root(self.root)
            try:
                descriptor = self._disk.open_root(self.root)
            except FileNotFoundError:
                raise NotCommitted(self.root, step) from None
            with self._closing(descriptor):
                yield descriptor
        except OSError as error:
            raise StoreUnavailable(self.root, error.strerror or str(error)) from error

    @contextlib.contextmanager
    def _closing(self, descriptor: int) -> Iterator[int]:
        try:
            yield descriptor
        finally:
            self._disk.close(descriptor)


def compare(step: int, shard: Shard, size: int, content: str) -> None:
    """Raise Damaged unless these are the size and the hash of the shard."""
    if size != shard.size:
        raise Damaged(step, shard.name, f"has {size} bytes, not {shard.size}")
    if content != shard.hash:
        raise Damaged(step, shard.name, "its bytes are not those that were committed")


def require_trainer_files(manifest: Manifest) -> None:
    """Raise Damaged if the program's trainer has removed what it saved."""
    trainer = manifest.trainer
    if trainer is not None and not trainer.exists():
        raise Damaged(manifest.step, trainer.path, "no longer exists")


def mark_name(nonce: str) -> str:
    """Return the name of a mark."""
    if not _NONCE.fullmatch(nonce):
        raise ValueError(f"not a mark: {nonce[:80]!r}")
    return f"{_MARK}{nonce}"


def is_mark(name: str) -> bool:
    """Tell whether this is the name of a mark."""
    return name.startswith(_MARK)
