"""Calls that fail: a disk that dies, lies or is full at the k-th call; where those calls are."""

import ast
import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torchloom.checkpoint
from torchloom.checkpoint.stream import Disk

ROOM = Path(torchloom.checkpoint.__file__).parent
ERRNOS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
LOCAL_FAULTS = ("kill", "ENOSPC", "EIO", "torn", "short", "cut", "cut_data", "cut_top")
_OF_WRITES = ("torn", "short")

# Dies at every call, and every other fault at every site that a scenario calls from; or at every
# call, from whichever site it comes the second time.
FORMS = pytest.mark.parametrize(
    "is_long",
    [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)],
)


def call_sites(modules: tuple[str, ...], names: tuple[str, ...], calls: type) -> dict[str, range]:
    """Return where modules call methods of `calls` on something named so: site -> its lines."""
    methods = {name for name in vars(calls) if not name.startswith("_")}
    sites = {}
    for module in modules:
        tree = ast.parse((ROOM / module).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                last = getattr(owner, "attr", getattr(owner, "id", ""))
                if last in names and node.func.attr in methods:
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    sites[f"{module}:{node.lineno} {node.func.attr}"] = lines
    return sites


def site_of(place: str, sites: dict[str, range]) -> str | None:
    """Return the site that a recorded place, `file:line method`, belongs to."""
    where, method = place.split(" ")
    module, line = where.split(":")
    for site, lines in sites.items():
        if site.startswith(f"{module}:") and site.endswith(f" {method}") and int(line) in lines:
            return site
    return None


def counted(calls: type, note: Callable[[str, str], Any]) -> type:
    """Return a subclass whose public methods ask `note(method, place)` first.

    The answer is None, or a function that is called with the method and its arguments instead.
    """

    def wrapped(name: str) -> Callable[..., Any]:
        own = getattr(calls, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {name}"
            instead = note(name, place)
            if instead is not None:
                return instead(lambda *some: own(self, *some, **kwargs), *args)
            return own(self, *args, **kwargs)

        return call

    public = {name for name in dir(calls) if not name.startswith("_")} - {"at"}
    return type("Counted", (calls,), {name: wrapped(name) for name in public})


class Stubborn(Disk):
    """A disk that opens files past the page cache, and then refuses to write them so."""

    def __init__(self) -> None:
        self._cached: set[int] = set()

    def write(self, descriptor: int, view: memoryview) -> int:
        """Write what goes through the page cache."""
        if descriptor not in self._cached:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().write(descriptor, view)

    def cached(self, descriptor: int) -> None:
        """Take what is written to it from now on."""
        super().cached(descriptor)
        self._cached.add(descriptor)

    def close(self, descriptor: int) -> None:
        """Forget it."""
        super().close(descriptor)
        self._cached.discard(descriptor)


class Adverse(Disk):
    """A disk that names manifests last, where a careless removal would do the most harm."""

    def names(self, folder: int) -> list[str]:
        """Return the names in the worst order."""
        return sorted(super().names(folder), reverse=True)


class Faulty:
    """Counts the calls of a disk and has the k-th go wrong in one way."""

    def __init__(self, at: int, fault: str, tell: Callable[[str], None], beside: Path) -> None:
        self.at = at
        self.fault = fault
        self.tell = tell
        self.count = 0
        self._method = ""
        self.ledger = Ledger(beside)
        self.disk: Disk = counted(Adverse, self._note)()

    def _note(self, method: str, place: str) -> Any:
        self.count += 1
        if self.fault == "none":
            self.tell(f"call {place}")
            return None
        if self.count != self.at:
            return self.ledger.following(method) if self.fault.startswith("cut") else None
        if self.fault in _OF_WRITES and method != "write":
            return None
        self.tell(f"fault {place}")
        self._method = method
        return self._fail

    def _fail(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.fault in ERRNOS:
            if self._method == "close":
                call(*args)  # a descriptor is closed, whatever close answers
            code = ERRNOS[self.fault]
            raise OSError(code, os.strerror(code))
        if self.fault in _OF_WRITES:
            descriptor, view = args
            done = call(descriptor, view[: max(1, len(view) // 2)])
            if self.fault == "short":
                return done
        if self.fault.startswith("cut"):
            self.ledger.lose(self.fault)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")


class Ledger:
    """What a power cut would take: bytes and names since each file's and folder's last sync."""

    def __init__(self, beside: Path) -> None:
        self._synced: dict[int, tuple[int, int]] = {}  # inode -> a descriptor, durable bytes
        self._names: list[tuple[int, Callable[[], None]]] = []  # folder's inode, how to undo
        self._top = 0
        self._kept = beside / "kept"  # files that were deleted, should their deletion be lost
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()

    def following(self, method: str) -> Callable[..., Any] | None:
        """Return what to do instead of a call: the same, written down."""
        return getattr(self, f"follow_{method}", None)

    def lose(self, fault: str) -> None:
        """Have the power cut: bytes that were not synced are gone, and names, or some of them.

        `cut` takes all names, `cut_data` none, `cut_top` those in the root: a file system may
        have kept any of them.
        """
        for descriptor, size in self._synced.values():
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)
        lost = {"cut": None, "cut_data": 0, "cut_top": self._top}[fault]
        for folder, undo in reversed(self._names):
            if lost is None or folder == lost:
                undo()

    def follow_open_root(self, call: Callable[..., Any], path: str) -> int:
        """Note which folder is the root."""
        descriptor: int = call(path)
        self._top = os.fstat(descriptor).st_ino
        return descriptor

    def follow_sync(self, call: Callable[..., Any], descriptor: int) -> None:
        call(descriptor)
        inode = os.fstat(descriptor).st_ino
        self._names = [(folder, undo) for folder, undo in self._names if folder != inode]
        if inode in self._synced:
            self._synced[inode] = (self._synced[inode][0], os.fstat(descriptor).st_size)

    def follow_open_write(
        self, call: Callable[..., Any], folder: int, name: str, *more: Any
    ) -> int:
        new = not os.path.exists(f"/proc/self/fd/{folder}/{name}")
        descriptor: int = call(folder, name, *more)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self._synced[os.fstat(descriptor).st_ino] = (os.open(path, os.O_RDWR), 0)
        if new:
            self._note(folder, lambda at: os.unlink(name, dir_fd=at))
        return descriptor

    def follow_make_folder(self, call: Callable[..., Any], parent: int, name: str) -> None:
        new = not os.path.exists(f"/proc/self/fd/{parent}/{name}")
        call(parent, name)
        if new:
            self._note(parent, lambda at: shutil.rmtree(f"/proc/self/fd/{at}/{name}"))

    def follow_rename_new(self, call: Callable[..., Any], folder: int, old: str, new: str) -> None:
        call(folder, old, new)
        self._note(folder, lambda at: os.rename(new, old, src_dir_fd=at, dst_dir_fd=at))

    def follow_replace(self, call: Callable[..., Any], folder: int, old: str, new: str) -> None:
        back = self._keep(folder, new)
        call(folder, old, new)

        def undo(at: int) -> None:
            os.rename(new, old, src_dir_fd=at, dst_dir_fd=at)
            if back:
                os.link(back, new, dst_dir_fd=at)

        self._note(folder, undo)

    def follow_unlink(self, call: Callable[..., Any], folder: int, name: str) -> None:
        back = self._keep(folder, name)
        call(folder, name)
        self._note(folder, lambda at: os.link(back, name, dst_dir_fd=at))

    def follow_remove_folder(self, call: Callable[..., Any], parent: int, name: str) -> None:
        inode = os.stat(name, dir_fd=parent).st_ino
        call(parent, name)
        self._names = [(folder, undo) for folder, undo in self._names if folder != inode]
        self._note(parent, lambda at: os.mkdir(name, dir_fd=at))

    def _note(self, folder: int, undo: Callable[[int], None]) -> None:
        kept = os.dup(folder)
        self._names.append((os.fstat(folder).st_ino, lambda: undo(kept)))

    def _keep(self, folder: int, name: str) -> str:
        back = str(self._kept / str(len(os.listdir(self._kept))))
        try:
            os.link(name, back, src_dir_fd=folder)
        except FileNotFoundError:
            return ""
        return back


@contextlib.contextmanager
def telling(path: str) -> Iterator[Callable[[str], None]]:
    """Give a function that appends a line to a file at once: what is told outlives a kill."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield lambda line: (os.write(descriptor, f"{line}\n".encode()), None)[1]
    os.close(descriptor)
