"""See what a process of this node does without asking it: by py-spy, and by what the kernel tells.

Nothing here stops or changes the process: its memory is read while it runs. Where that is not
allowed (another user's process, or a kernel that lets only parents look), /proc is what is left.
"""

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchloom.bus.messages import Frame, Look, Thread

_PATIENCE = 5.0  # seconds that py-spy has
_DEPTH = 64  # calls of a stack that are kept, the innermost ones
_THREADS = 64
_LONGEST_LINE = 120
_LONGEST_FILE = 4 << 20  # bytes of a program that is opened for one line
_TICKS = os.sysconf("SC_CLK_TCK")


class CannotLook(Exception):
    """The threads of a process cannot be seen from outside, in words."""


def kernel_sees(pid: int, proc: Path = Path("/proc")) -> Look:
    """Return what /proc tells of a process; of one that is gone, no state."""
    here = proc / str(pid)
    fields = _text(here / "stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return Look(time.monotonic(), 0.0, "")
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    waits_in = _text(here / "wchan").strip()
    return Look(time.monotonic(), cpu, fields[0], "" if waits_in == "0" else waits_in)


def py_spy() -> str | None:
    """Return where py-spy is: beside this interpreter, else in PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


async def threads_of(pid: int, program: str | None) -> tuple[Thread, ...]:
    """Return what the threads of a Python process do, or raise why that cannot be seen."""
    if program is None:
        raise CannotLook("py-spy is not installed")
    words = (program, "dump", "--json", "--nonblocking", "--pid", str(pid))
    try:
        return _read(await _output(words), pid)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise CannotLook(f"py-spy says what nobody understands: {error}") from error


async def _output(words: Sequence[str]) -> bytes:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise CannotLook(f"py-spy does not start: {error}") from error
    try:
        async with asyncio.timeout(_PATIENCE):
            said, complaint = await process.communicate()
    except TimeoutError:
        raise CannotLook(f"py-spy took longer than {_PATIENCE:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # of no effect on one that has ended
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines() or ["no word"]
        raise CannotLook(f"py-spy: {lines[-1].strip()[:200]}")
    return said


def _read(said: bytes, pid: int) -> tuple[Thread, ...]:
    found: list[dict[str, Any]] = msgspec.json.decode(said)
    return tuple(_thread(one, pid) for one in found[:_THREADS])


def _thread(said: dict[str, Any], pid: int) -> Thread:
    frames = tuple(
        Frame(one["name"], one["filename"], one["line"]) for one in said["frames"][:_DEPTH]
    )
    if frames:
        frames = (with_text(frames[0]), *frames[1:])
    return Thread(said["thread_name"] or "", said["os_thread_id"] == pid, frames)


def with_text(frame: Frame) -> Frame:
    """Return the call with its line of the program, where that can be read."""
    with contextlib.suppress(OSError):
        found = os.stat(frame.file)
        if stat.S_ISREG(found.st_mode) and found.st_size <= _LONGEST_FILE:
            with open(frame.file, errors="replace") as file:
                lines = file.read().splitlines()[frame.line - 1 : frame.line] if frame.line else []
            text = lines[0].strip()[:_LONGEST_LINE] if lines else ""
            return Frame(frame.function, frame.file, frame.line, text)
    return frame


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone, or not for us
        return ""
