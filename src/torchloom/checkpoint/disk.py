"""Every call to the operating system that a local store makes, so that tests can count and fail it.

Names are relative to the descriptor of a folder, and no link is followed: what lies in a root can
not lead out of it.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import stat
from collections.abc import Callable

_DIRECT: int = getattr(os, "O_DIRECT", 0)  # Linux
_NOREPLACE = 1  # RENAME_NOREPLACE
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


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
        """Wait for the lock; closing the descriptor, or dying, gives it back."""
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
        """Come back when the file, or the names in the folder, would survive a power cut."""
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
