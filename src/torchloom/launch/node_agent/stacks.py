"""Take the stacks of ranks when the weaver wants them, twice: so who has not moved is known."""

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchloom.bus.api import BusLost, TooLong
from torchloom.launch.node_agent.server import KnownRanks, RankEntry
from torchloom.messages.plane import (
    Frame,
    OwnStacks,
    ProcessSample,
    ShowStacks,
    Stacks,
    TakeStacks,
    Thread,
)

_PATIENCE = 5.0  # seconds that py-spy has
_DEPTH = 64  # calls of a stack that are kept, the innermost ones
_THREADS = 64
_LONGEST_LINE = 120
_LONGEST_FILE = 4 << 20  # bytes of a program that is opened for one line
_TICKS = os.sysconf("SC_CLK_TCK")
APART = 0.3  # seconds between the two looks
_ANSWER = 0.5  # seconds in which a threadlet that may run answers
_AT_ONCE = 4  # processes that are looked at together


class CannotLook(Exception):
    """The threads of a process cannot be seen from outside, in words."""


def kernel_sees(pid: int, proc: Path = Path("/proc")) -> ProcessSample:
    """Return what /proc shows of a process; of one that is gone, no state."""
    here = proc / str(pid)
    fields = _text(here / "stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return ProcessSample(time.monotonic(), 0.0, "")
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    waits_in = _text(here / "wchan").strip()
    return ProcessSample(time.monotonic(), cpu, fields[0], "" if waits_in == "0" else waits_in)


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
        raise CannotLook(f"py-spy printed something that is not a stack: {error}") from error


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


Publish = Callable[[Stacks], Awaitable[None]]


class StackTaker:
    """Looks at ranks from outside and asks their threadlets beside; the better answer counts."""

    def __init__(
        self,
        agent: str,
        ranks: KnownRanks,
        publish: Publish,
        is_alive: Callable[[int, int], bool],
        program: str | None = None,
    ) -> None:
        self._agent = agent
        self._ranks = ranks
        self._publish = publish
        self._is_alive = is_alive
        self._program = program or py_spy()
        self._asked: dict[str, asyncio.Future[tuple[Thread, ...]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    def start(self, wanted: TakeStacks) -> None:
        """Look at those of the named lives that are here; what was seen is published."""
        for entry in self._ranks.entries_of(frozenset(wanted.lives)):
            task = asyncio.create_task(self._report(entry, wanted.request), name="stacks")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def answered(self, said: OwnStacks) -> None:
        """Take in what a threadlet says of its process."""
        waiting = self._asked.get(said.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(said.threads)

    async def close(self) -> None:
        """Leave what is not seen yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _report(self, entry: RankEntry, request: str) -> None:
        head = entry.register.head
        async with self._room:
            first, _ = await self._look(entry)
            await asyncio.sleep(APART)
            last, is_silent = await self._look(entry)
        said = Stacks(head, self._agent, request, (first, last), is_silent)
        with contextlib.suppress(BusLost):  # the caller asks again
            try:
                await self._publish(said)
            except TooLong:
                bare = tuple(_main_only(look) for look in said.looks)
                await self._publish(msgspec.structs.replace(said, looks=bare))

    async def _look(self, entry: RankEntry) -> tuple[ProcessSample, bool]:
        """Return what is seen of a process now, and whether its threadlet kept silent."""
        pid, started = entry.process
        answer = asyncio.create_task(self._ask(entry))
        try:
            threads, note = await self._outside(pid)
            own = await answer
        finally:
            answer.cancel()
        seen = kernel_sees(pid) if self._is_alive(pid, started) else ProcessSample(0.0, 0.0, "")
        if not seen.state:
            return msgspec.structs.replace(seen, note="the process is gone"), own is None
        seen = self._with_progress(entry, seen)
        if not threads and own:
            text = tuple(_with_text(thread) for thread in own)
            return msgspec.structs.replace(seen, source="threadlet", threads=text, note=note), False
        source = "py-spy" if threads else ""
        return msgspec.structs.replace(seen, source=source, threads=threads, note=note), own is None

    def _with_progress(self, entry: RankEntry, seen: ProcessSample) -> ProcessSample:
        """Return a look with what the rank's own page says at that moment."""
        read = self._ranks.progress_of(entry)
        if read is None:
            return seen
        word = {"step": read.step, "phase": read.phase}
        return msgspec.structs.replace(seen, **word, still=read.moved, lasted=read.step_seconds)

    async def _outside(self, pid: int) -> tuple[tuple[Thread, ...], str]:
        try:
            return await threads_of(pid, self._program), ""
        except CannotLook as error:
            return (), str(error)

    async def _ask(self, entry: RankEntry) -> tuple[Thread, ...] | None:
        if entry.connection is None:
            return None
        name = uuid.uuid4().hex[:16]
        waiting: asyncio.Future[tuple[Thread, ...]] = asyncio.get_running_loop().create_future()
        self._asked[name] = waiting
        entry.connection.send(ShowStacks(entry.register.head, name))
        try:
            async with asyncio.timeout(_ANSWER):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._asked[name]


def _main_only(look: ProcessSample) -> ProcessSample:
    main = tuple(thread for thread in look.threads if thread.is_main)
    return msgspec.structs.replace(look, threads=main)


def _with_text(thread: Thread) -> Thread:
    if not thread.frames:
        return thread
    frames = (with_text(thread.frames[0]), *thread.frames[1:])
    return Thread(thread.name, thread.is_main, frames)
