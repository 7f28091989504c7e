"""Read the memory of another process of this user, which waits meanwhile: one copy, no file.

The kernel may forbid it (another namespace, a container's filter, Yama): then it is an OSError, and
the state comes another way.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SET_PTRACER = 0x59616D61
_ANYBODY, _NOBODY = ctypes.c_ulong(-1), ctypes.c_ulong(0)
_BY_CONSENT = "1"  # a process says itself who may read it


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read(pid: int, address: int, into: memoryview) -> None:
    """Fill memory of ours with that of another process; OSError where that cannot be."""
    ours, done = address_of(into), 0
    while done < len(into):
        left = len(into) - done
        here, there = _Part(ours + done, left), _Part(address + done, left)
        got = _library().process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += got


def address_of(view: memoryview) -> int:
    """Return where memory that may be written to begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Let others of this user read us, within; where the kernel wants our consent for that."""
    is_asked = _scope() == _BY_CONSENT
    if is_asked:
        _library().prctl(_SET_PTRACER, _ANYBODY, 0, 0, 0)
    try:
        yield
    finally:
        if is_asked:
            _library().prctl(_SET_PTRACER, _NOBODY, 0, 0, 0)


def can_be_read() -> bool:
    """Tell whether this system has what it takes."""
    return hasattr(_library(), "process_vm_readv")


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # a system without it
        library.process_vm_readv.restype = ctypes.c_ssize_t
        library.process_vm_readv.argtypes = [
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
            *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
        ]
    return library


def _scope() -> str:
    try:
        return _SCOPE.read_text().strip()
    except OSError:
        return ""
