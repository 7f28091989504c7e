"""Files that a program's trainer has saved in its own way, outside of the store.

The store commits a small checkpoint of its own beside them: what a run needs to resume its trainer,
and in the manifest the names, sizes and hashes of the trainer's files.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.checkpoint.errors import BadManifest, CheckpointError, Damaged

MOST_FILES = 4096  # more do not fit into a message, nor more letters of their names
_MOST_LETTERS = 400_000
ITSELF = "."  # the name of the only file, if the trainer saves a file and no folder
_LONGEST_PATH = 4096
_CHUNK = 32 * 2**20  # bytes between two calls of `pace`
_LARGEST = 2**53  # bytes; beyond it JSON readers round
_KIND = re.compile("[a-z][a-z0-9_-]{0,63}")
_HASH = re.compile("blake3:[0-9a-f]{64}")
OnRead = Callable[[int], None]  # called with a number of bytes


class NotHashed(CheckpointError):
    """The files of a trainer could not be recorded."""

    code = "trainer_files"

    def __init__(self, kind: str, path: str, why: str) -> None:
        super().__init__(f"what {kind} saved in {path} cannot be recorded: {why}")


@dataclass(frozen=True, slots=True)
class TrainerFile:
    """One file: its name below the trainer's folder, its bytes and their hash."""

    name: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class TrainerFiles:
    """What a trainer has saved: by which trainer, where, and in which training of the process."""

    kind: str
    path: str
    files: tuple[TrainerFile, ...]
    training: int = 1

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)

    def exists(self) -> bool:
        """Tell whether the folder or the file is there."""
        return os.path.exists(self.path)

    def part(self, index: int, count: int) -> "TrainerFiles":
        """Return the files that one of several readers checks; each gets about as many bytes."""
        ordered = sorted(self.files, key=lambda file: (-file.size, file.name))
        return TrainerFiles(self.kind, self.path, tuple(ordered[index::count]), self.training)

    def check_sizes(self, step: int) -> None:
        """Raise Damaged if a file is missing or has another size."""
        for file in self.files:
            place = _place(self.path, file.name)
            try:
                found = os.stat(place, follow_symlinks=False)
            except OSError as error:
                raise Damaged(step, place, error.strerror or str(error)) from None
            if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
                raise Damaged(step, place, f"has {found.st_size} bytes, not {file.size}")

    def verify(self, step: int, on_read: OnRead | None = None) -> None:
        """Read and hash all files; raise Damaged unless they are what the trainer saved."""
        self.check_sizes(step)
        for file in self.files:
            place = _place(self.path, file.name)
            try:
                size, content = _hash_of(place, on_read)
            except OSError as error:
                raise Damaged(step, place, error.strerror or str(error)) from None
            if (size, content) != (file.size, file.hash):
                raise Damaged(step, place, "its bytes are not those that were saved")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        files = [[file.name, file.size, file.hash] for file in self.files]
        return {"kind": self.kind, "path": self.path, "training": self.training, "files": files}

    @classmethod
    def from_dict(cls, value: Any) -> "TrainerFiles":
        """Read back what `to_dict` wrote, from anywhere, or raise BadManifest."""
        if not isinstance(value, Mapping):
            raise BadManifest("trainer must be an object")
        kind, path, training = (value.get(name) for name in ("kind", "path", "training"))
        files = value.get("files")
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise BadManifest("the kind of a trainer must be a short word")
        if not _is_path(path) or not str(path).startswith("/"):
            raise BadManifest("the path of a trainer's files must be absolute")
        if type(training) is not int or not 1 <= training <= _LARGEST:
            raise BadManifest("training must be a count")
        if not isinstance(files, list) or not 1 <= len(files) <= MOST_FILES:
            raise BadManifest(f"a trainer's files must be 1 to {MOST_FILES}")
        return cls(kind, str(path), tuple(map(_file, files)), training)


def survey(
    kind: str, path: str, training: int = 1, pace: Callable[[], None] | None = None
) -> TrainerFiles:
    """Return what a trainer has saved in a folder, or as a file; all of it is durable then.

    `pace` is called between files and chunks. Raises NotHashed if files are removed or changed
    meanwhile.
    """
    pace = pace or (lambda: None)
    files = []
    try:
        before = dict(_stats(path))
        if not 1 <= len(before) <= MOST_FILES or sum(map(len, before)) > _MOST_LETTERS:
            raise NotHashed(kind, path, f"it has {len(before)} files, not 1 to {MOST_FILES}")
        for name in before:
            content = _hash_of(_place(path, name), _paced(pace), is_synced=True)
            files.append(TrainerFile(name, *content))
            pace()
        if os.path.isdir(path):
            _sync_folders(path)
        if dict(_stats(path)) != before:
            raise NotHashed(kind, path, "its files were changed while they were read")
    except OSError as error:
        raise NotHashed(kind, path, error.strerror or str(error)) from error
    return TrainerFiles(kind, path, tuple(files), training)


def _paced(pace: Callable[[], None]) -> OnRead:
    """Return what calls `pace` once a chunk."""
    read = 0

    def on_read(count: int) -> None:
        nonlocal read
        before, read = read, read + count
        if before // _CHUNK != read // _CHUNK:
            pace()

    return on_read


def _stats(path: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the plain files of a folder in order: name, size and time of the last change."""
    if os.path.isfile(path):
        yield ITSELF, _size_and_time(path)
        return
    for folder, below, names in os.walk(path, onerror=_raise):
        below.sort()
        for name in sorted(names):
            place = os.path.join(folder, name)
            if not os.path.islink(place) and os.path.isfile(place):
                yield os.path.relpath(place, path), _size_and_time(place)


def _raise(error: OSError) -> None:
    raise error


def _size_and_time(place: str) -> tuple[int, int]:
    found = os.stat(place)
    return found.st_size, found.st_mtime_ns


def _hash_of(place: str, on_read: OnRead | None, is_synced: bool = False) -> tuple[int, str]:
    """Return the size and the hash of a file, made durable if wanted; a pipe does not block."""
    from torchloom.checkpoint import stream  # which imports the manifest, and that this module

    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if is_synced:
            os.fsync(descriptor)
        return stream.hash_of(lambda view: os.readv(descriptor, [view]), on_read)
    finally:
        os.close(descriptor)


def _sync_folders(path: str) -> None:
    for folder in [os.path.dirname(path), *(folder for folder, _, _ in os.walk(path))]:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _place(path: str, name: str) -> str:
    return path if name == ITSELF else os.path.join(path, name)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_PATH and value.isprintable()


def _file(value: Any) -> TrainerFile:
    if not isinstance(value, list) or len(value) != 3 or not _is_path(value[0]):
        raise BadManifest("a trainer's file must be a name, a size and a hash")
    name, size, content = str(value[0]), value[1], value[2]
    if name.startswith("/") or ".." in name.split("/"):
        raise BadManifest(f"the file {name} must lie in its trainer's folder")
    if type(size) is not int or not 0 <= size <= _LARGEST:
        raise BadManifest(f"the size of {name} must be a count")
    if not isinstance(content, str) or not _HASH.fullmatch(content):
        raise BadManifest(f"the hash of {name} must be blake3: and 64 hexadecimal digits")
    return TrainerFile(name, size, content)
