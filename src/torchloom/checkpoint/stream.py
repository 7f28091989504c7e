"""Read and write the bytes of a shard: in chunks, hashed meanwhile, aligned where that pays."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from blake3 import blake3

from torchloom.checkpoint.storage import OnRead, Pace, Written

_DIRECT: int = getattr(os, "O_DIRECT", 0)  # Linux
_NOREPLACE = 1  # RENAME_NOREPLACE
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
CHUNK = 32 * 2**20  # between two of them other threads may run Python
_READ = 2**20  # hashed while the processor's cache still has it
ALIGN = 4096  # of memory, offset and length, for a write past the page cache
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14


class Disk:
    """The operating system's file calls, one method each."""

    def make_root(self, path: str) -> None:
        """Make a folder and its parents; those that are there are fine."""
        os.makedirs(path, exist_ok=True)

    def open_root(self, path: str) -> int:
        """Open the root, the only path that may have links: its owner chose it."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def open_folder(self, parent: int, name: str) -> int:
        """Open a folder in a folder."""
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)

    def open_read(self, folder: int, name: str) -> int:
        """Open a file for reading; a pipe someone left there does not block."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=folder)

    def open_write(self, folder: int, name: str, direct: bool = False) -> int:
        """Open an empty file for writing, past the page cache where that is wanted and possible."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        if direct and _DIRECT:
            with contextlib.suppress(OSError):  # a file system that refuses it, or a real error:
                return os.open(name, flags | _DIRECT, 0o666, dir_fd=folder)  # seen again below
        return os.open(name, flags, 0o666, dir_fd=folder)

    def open_lock(self, folder: int, name: str) -> int:
        """Open a file that is only there to be locked."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=folder)

    def lock(self, descriptor: int) -> None:
        """Wait for the lock; it is released when the descriptor is closed or the process ends."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, view: memoryview) -> int:
        """Write at the end of what was written; return how much of it."""
        return os.write(descriptor, view)

    def cached(self, descriptor: int) -> None:
        """Have the file written through the page cache from now on."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)

    def read_into(self, descriptor: int, view: memoryview) -> int:
        """Read the next bytes of a file; return how many, 0 at its end."""
        return os.readv(descriptor, [view])

    def sync(self, descriptor: int) -> None:
        """Return when the file, or the names in the folder, would survive a power cut."""
        os.fsync(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the size of a plain file; anything else is an error."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        return found.st_size

    def size_at(self, folder: int, name: str) -> int | None:
        """Return the size of a plain file in a folder, or None where there is none."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def exists(self, folder: int, name: str) -> bool:
        """Tell whether anything has this name."""
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: int) -> list[str]:
        """Return the names in a folder, in no order."""
        return os.listdir(folder)

    def make_folder(self, parent: int, name: str) -> None:
        """Make a folder; one that is there is fine."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=parent)

    def rename_new(self, folder: int, old: str, new: str) -> None:
        """Give a folder a name that nothing has, in one step; FileExistsError where it is taken."""
        renameat2 = _renameat2()
        if renameat2 is not None:
            if renameat2(folder, old.encode(), folder, new.encode(), _NOREPLACE) == 0:
                return
            code = ctypes.get_errno()
            if code not in _UNSUPPORTED:
                raise OSError(code, os.strerror(code), new)
        # A plain rename replaces an empty folder and nothing else. Who comes here holds the lock,
        # and a committed folder is never empty: it fails for what another host put there.
        if self.exists(folder, new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)

    def replace(self, folder: int, old: str, new: str) -> None:
        """Give a file a name, in one step, whatever had it before."""
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, folder: int, name: str) -> None:
        """Delete a file."""
        os.unlink(name, dir_fd=folder)

    def remove_folder(self, parent: int, name: str) -> None:
        """Delete an empty folder."""
        os.rmdir(name, dir_fd=parent)


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is None:  # an older C library, or not Linux
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    found.restype = ctypes.c_int
    call: Callable[[int, bytes, int, bytes, int], int] = found
    return call


Got = tuple[memoryview, int, str]  # memory, how much of it was filled, and the hash of that


def write(disk: Disk, descriptor: int, buffers: Sequence[memoryview], pace: Pace | None) -> Written:
    """Write the buffers to a new file, and return what it is. It is not durable yet."""
    hasher = blake3()
    size = 0
    with ThreadPoolExecutor(1, "loom-hash") as beside:
        for chunk in chunks(buffers):
            hashed = _begun(beside, hasher, chunk)
            try:
                _write_all(disk, descriptor, chunk)
            finally:
                if hashed is not None:
                    hashed.result()  # the chunk may be used again
            size += len(chunk)
            if pace is not None:
                pace()
    return Written(size, f"blake3:{hasher.hexdigest()}")


def _begun(beside: ThreadPoolExecutor, hasher: blake3, chunk: memoryview) -> Future[blake3] | None:
    """Begin to hash a chunk; None if it is hashed, as no thread runs for us while Python exits."""
    try:
        return beside.submit(hasher.update, chunk)
    except RuntimeError:
        hasher.update(chunk)
        return None


def chunks(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yield the bytes in order, each chunk aligned and a multiple of ALIGN but for the last.

    What lies aligned is yielded where it lies; the rest is gathered in one buffer, used again.
    """
    gathered = memoryview(b"")
    filled = 0
    for buffer in buffers:
        view = buffer.cast("B")
        while view:
            if filled % ALIGN == 0 and len(view) >= ALIGN and _ahead(view) == 0:
                if filled:
                    yield gathered[:filled]
                    filled = 0
                taken = min(len(view) // ALIGN * ALIGN, CHUNK)
                yield view[:taken]
            else:
                gathered = gathered or memoryview(memory(CHUNK))
                taken = _to_gather(view, filled)
                gathered[filled : filled + taken] = view[:taken]
                filled += taken
                if filled == CHUNK:
                    yield gathered
                    filled = 0
            view = view[taken:]
    if filled:
        yield gathered[:filled]


class Hashing:
    """Buffers in parts, hashed as they are taken; `failed` is what `pace` raised meanwhile."""

    def __init__(self, buffers: Sequence[memoryview], part: int, pace: Pace | None) -> None:
        self._buffers = buffers
        self._part = part
        self._pace = pace
        self._hasher = blake3()
        self._size = 0
        self.failed: BaseException | None = None

    @property
    def written(self) -> Written:
        """Return what was taken so far."""
        return Written(self._size, f"blake3:{self._hasher.hexdigest()}")

    def __iter__(self) -> Iterator[memoryview]:
        for buffer in self._buffers:
            view = buffer.cast("B")
            for start in range(0, len(view), self._part):
                yield self._taken(view[start : start + self._part])

    def _taken(self, part: memoryview) -> memoryview:
        try:
            if self._pace is not None and self._size:
                self._pace()
        except BaseException as error:
            self.failed = error
            raise
        self._hasher.update(part)
        self._size += len(part)
        return part


def filling(parts: Iterator[memoryview]) -> Callable[[memoryview], int]:
    """Return a function that fills memory with the next bytes of the parts, 0 at their end."""
    left = memoryview(b"")

    def fill(view: memoryview) -> int:
        nonlocal left
        while not left:
            part = next(parts, None)
            if part is None:
                return 0
            left = part
        taken = min(len(left), len(view))
        view[:taken] = left[:taken]
        left = left[taken:]
        return taken

    return fill


def mapped(descriptor: int, size: int, check: bool = True) -> Got | None:
    """Return a file of this size as memory, and its hash; None where that cannot be had.

    Nothing is copied: the pages are the page cache's, and a write to one makes a private copy of it
    from then on. Each part is asked for before it is touched, so that what the disk cannot read
    is an answer here, and not the end of the process.
    """
    try:
        pages = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # a file system without this, or nothing in the file
        return None
    hasher = blake3()
    whole = memoryview(pages)
    start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    for at in range(0, size, _READ):
        part = whole[at : at + _READ]
        if not fetched(start + at, len(part)):
            return None
        if check:
            hasher.update(part)
    return whole, size, f"blake3:{hasher.hexdigest()}"


def read(size: int, fill: Callable[[memoryview], int], check: bool = True) -> Got:
    """Return memory of this size, how much of it `fill` filled, and the hash of that."""
    if not size:
        return memoryview(bytearray()), 0, f"blake3:{blake3().hexdigest()}"
    whole = memoryview(memory(size))
    hasher = blake3()
    filled = 0
    while filled < size:
        got = fill(whole[filled : filled + _READ])
        if not got:
            break
        if check:
            hasher.update(whole[filled : filled + got])
        filled += got
    return whole, filled, f"blake3:{hasher.hexdigest()}"


def memory(size: int) -> mmap.mmap:
    """Return page-aligned memory of this process alone, in huge pages where there are any."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def hash_of(fill: Callable[[memoryview], int], on_read: OnRead | None = None) -> tuple[int, str]:
    """Return the size and the hash of all that `fill` gives, which is not kept."""
    hasher = blake3()
    size = 0
    with memory(_READ) as pages, memoryview(pages) as view:
        while got := fill(view):
            with view[:got] as part:
                hasher.update(part)
            size += got
            if on_read is not None:
                on_read(got)
    return size, f"blake3:{hasher.hexdigest()}"


def fetched(address: int, size: int) -> bool:
    """Have mapped pages read; tell whether they can be touched. The interpreter is not held."""
    advise = _madvise()
    return advise is not None and advise(address, size, _POPULATE_READ) == 0


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found = ctypes.CDLL(None, use_errno=True).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found.restype = ctypes.c_int
    call: Callable[[int, int, int], int] = found
    return call


def _ahead(view: memoryview) -> int | None:
    """Return the bytes before the next aligned address; None for memory that is only read."""
    if view.readonly:
        return None  # no way to ask; staging buffers are not of this kind
    return -ctypes.addressof(ctypes.c_char.from_buffer(view)) % ALIGN


def _to_gather(view: memoryview, filled: int) -> int:
    """Return how much of a view to gather: to where the rest of it could be written as it lies."""
    room = min(len(view), CHUNK - filled)
    ahead = _ahead(view)
    if ahead and ahead < room and (filled + ahead) % ALIGN == 0:
        return ahead
    return room


def _write_all(disk: Disk, descriptor: int, chunk: memoryview) -> None:
    refused = False
    while chunk:
        if refused or len(chunk) % ALIGN:  # a tail, or what a short write left
            disk.cached(descriptor)
        try:
            chunk = chunk[disk.write(descriptor, chunk) :]
        except OSError as error:
            if refused or error.errno != errno.EINVAL:
                raise
            refused = True  # opened past the page cache, but not to be written so
