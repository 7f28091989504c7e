"""Let /proc tell the truth about a fork that became another program: its words, variables, name.

The kernel is told where to find them (PR_SET_MM_MAP, no privilege needed). A kernel without that
gets the zygote's own strings overwritten, as far as they are long enough: nothing points there any
more once the environment was set anew.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping, Sequence

from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE, NODE_VARIABLE

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
_KEEP_EXE = 0xFFFFFFFF
_NAME_LIMIT = 15
_FIELDS = {  # of /proc/self/stat, as proc(5) numbers them
    "start_code": 26,
    "end_code": 27,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "start_stack": 28,
    "arg_start": 48,
    "arg_end": 49,
    "env_start": 50,
    "env_end": 51,
}


class _MemoryMap(ctypes.Structure):
    """What the kernel wants to know of a process all at once; see prctl(2)."""

    _fields_ = [
        ("start_code", ctypes.c_uint64),
        ("end_code", ctypes.c_uint64),
        ("start_data", ctypes.c_uint64),
        ("end_data", ctypes.c_uint64),
        ("start_brk", ctypes.c_uint64),
        ("brk", ctypes.c_uint64),
        ("start_stack", ctypes.c_uint64),
        ("arg_start", ctypes.c_uint64),
        ("arg_end", ctypes.c_uint64),
        ("env_start", ctypes.c_uint64),
        ("env_end", ctypes.c_uint64),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Make ps and /proc show this command and this environment for the calling process."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, os.fsencode(os.path.basename(argv[0]))[:_NAME_LIMIT], 0, 0, 0)
    if not _move(libc, _joined(argv), _joined(_entries(env))):
        overwrite(argv, env)


def overwrite(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Show as much as there is room for where the first program's words and variables lie.

    What tells to which job a process belongs comes first.
    """
    places = _places()
    first = sorted(env, key=lambda name: name not in (JOB_VARIABLE, NODE_VARIABLE, AGENT_VARIABLE))
    _fill(places["arg_start"], places["arg_end"], _joined(argv))
    variables = _joined(_entries({name: env[name] for name in first}))
    _fill(places["env_start"], places["env_end"], variables)


def _entries(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _joined(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def _places() -> dict[str, int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return {name: int(fields[number - 3]) for name, number in _FIELDS.items()}


def _move(libc: ctypes.CDLL, words: bytes, variables: bytes) -> bool:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the kernel reads no others here
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=private)
    memory.write(words + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.sbrk.restype = ctypes.c_void_p
    middle, end = start + len(words), start + len(words) + len(variables)
    found = _MemoryMap(**_places(), brk=libc.sbrk(0), exe_fd=_KEEP_EXE)
    found.arg_start, found.arg_end, found.env_start, found.env_end = start, middle, middle, end
    size = ctypes.c_ulong(ctypes.sizeof(found))
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(found), size, 0):
        return False
    _shown.append(memory)  # stays as long as the process
    return True


def _fill(start: int, end: int, text: bytes) -> None:
    room = end - start
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)


_shown: list[mmap.mmap] = []
