"""Waits for a peer that gloo has forgotten: the connection is gone, and nobody is told.

Gloo tells of a lost connection whoever is on its lists. A message that is half sent or half
received is on none of them, and a connection on which something came for a collective that has
failed is never read again. Such a wait lasts for its whole timeout, and so does the end of the
group. A thread that is in one is known by the word of memory it sleeps on, and is told instead.
"""

import contextlib
import ctypes
import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TASKS = Path("/proc/self/task")
_WORKER, _LOOP = "pt_gloo_runloop", "gloo_tcp_loop"  # threads that run collectives, and that read
_FUTEX = ("202", "98")  # the number of that call: x86-64, arm64
_MOST = 2.0  # seconds; who is in the middle of something by then is left alone
_PAUSE = 0.001
_SPUN = 5_000_000  # ns in which the loop has read all there is; it does not rest meanwhile
_UNREAD = 0.15  # seconds after which it is not waited for any more
_WORDS = b"gloo/gloo/transport/tcp: the connection to a peer is gone"
_CLASS = "N4gloo9transport3tcp13UnboundBuffer"
_TELL = f"_Z{_CLASS}15signalExceptionENSt15__exception_ptr13exception_ptrE"
_TABLE = f"_ZTV{_CLASS}E"
_TO_METHODS = 16  # bytes from the begin of a class's table to where its objects point
_CONDITIONS = (0x50, 0x80)  # where a buffer has those for what is received, and sent
_SIGNALS = (0x28, 0x2C)  # where a condition has what is slept on
_alone = threading.Lock()


class _Unknown(Exception):
    """This torch is not built as we know it."""


@dataclass(frozen=True, slots=True)
class _Thread:
    """What a thread does: whether it sleeps, and on which buffer if so."""

    is_asleep: bool = False
    buffer: int = 0


def end_waits(
    threads: Iterable[int], is_open: Callable[[], bool], is_wanted: Callable[[], bool]
) -> None:
    """Have these threads raise where they wait for peers, whose connections have been shut down.

    Comes back when those that run collectives have nothing to do, or nobody wants it any more.
    """
    with _alone, contextlib.suppress(_Unknown, OSError):
        gloo, names = _gloo(), {one: _name(one) for one in threads}
        loops = [one for one, name in names.items() if name == _LOOP]
        is_settled = _settling(loops, is_open)
        before: Mapping[int, _Thread] = {}
        deadline = time.monotonic() + _MOST
        while is_wanted() and time.monotonic() < deadline:
            now = {one: _seen(one, gloo.table) for one in names if one not in loops}
            if is_settled():
                for one, seen in now.items():
                    if seen.buffer and before.get(one) == seen and is_wanted():
                        gloo.tell(seen.buffer)
                workers = (seen for one, seen in now.items() if names[one] == _WORKER)
                if not any(seen.buffer for seen in now.values()) and all(
                    seen.is_asleep for seen in workers
                ):
                    break
            before = now
            time.sleep(_PAUSE)


def threads() -> frozenset[int]:
    """Return the threads of this process."""
    with contextlib.suppress(OSError):
        return frozenset(map(int, os.listdir(_TASKS)))
    return frozenset()


def _settling(loops: Iterable[int], is_open: Callable[[], bool]) -> Callable[[], bool]:
    """Return what tells whether gloo has seen to all that it does see."""
    begun, ran = time.monotonic(), sum(map(_ran, loops))

    def is_settled() -> bool:
        if not is_open() or time.monotonic() - begun > _UNREAD:
            return True
        return sum(map(_ran, loops)) - ran > _SPUN

    return is_settled


def _seen(thread: int, table: int) -> _Thread:
    try:
        words = (_TASKS / str(thread) / "syscall").read_text().split()
    except OSError:  # it is over
        return _Thread(is_asleep=True)
    if words[0] not in _FUTEX:
        return _Thread()
    word = int(words[1], 16)
    around = (word - signal - condition for condition in _CONDITIONS for signal in _SIGNALS)
    return _Thread(True, next((one for one in around if _at(one) == table), 0))


def _at(address: int) -> int:
    """Return what stands somewhere in memory, if something does."""
    with contextlib.suppress(OSError, OverflowError):
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(memory, 8, address)
        finally:
            os.close(memory)
        return int(struct.unpack("Q", found)[0]) if len(found) == 8 else 0
    return 0


def _name(thread: int) -> str:
    with contextlib.suppress(OSError):
        return (_TASKS / str(thread) / "comm").read_text().strip()
    return ""


def _ran(thread: int) -> int:
    """Return for how many nanoseconds a thread has run."""
    with contextlib.suppress(OSError):
        return int((_TASKS / str(thread) / "schedstat").read_text().split()[0])
    return 0


class _Gloo:
    """What torch's gloo, and the library under it, let be called."""

    def __init__(self) -> None:
        import torch

        library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        try:
            gloo, self._base = ctypes.CDLL(str(library)), ctypes.CDLL("libstdc++.so.6")
            self._signal = gloo[_TELL]
            self.table = ctypes.addressof(ctypes.c_char.in_dll(gloo, _TABLE)) + _TO_METHODS
            self._new = self._base["__cxa_allocate_exception"]
            self._prepare = self._base["__cxa_init_primary_exception"]
            self._fill = self._base["_ZNSt13runtime_errorC1EPKc"]
            self._own = self._base["_ZNSt15__exception_ptr13exception_ptrC1EPv"]
        except (OSError, ValueError, AttributeError) as error:
            raise _Unknown(str(error)) from error
        self._new.restype = ctypes.c_void_p

    def tell(self, buffer: int) -> None:
        """Have whoever waits for a buffer raise."""
        held = self._exception()
        self._signal(ctypes.c_void_p(buffer), ctypes.byref(held))  # and takes it

    def _exception(self) -> Any:
        kind = ctypes.byref(ctypes.c_char.in_dll(self._base, "_ZTISt13runtime_error"))
        error = ctypes.c_void_p(self._new(ctypes.c_size_t(16)))
        self._prepare(error, kind, self._base["_ZNSt13runtime_errorD1Ev"])
        self._fill(error, _WORDS)
        held = ctypes.c_void_p()
        self._own(ctypes.byref(held), error)
        return held


@functools.cache
def _gloo() -> _Gloo:
    return _Gloo()
