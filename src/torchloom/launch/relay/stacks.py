"""Take the stacks of ranks when the weaver wants them, twice: so who has not moved is known."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

import msgspec

from torchloom.bus.api import BusLost, TooLong
from torchloom.bus.messages import Look, OwnStacks, ShowStacks, Stacks, TakeStacks, Thread
from torchloom.launch.relay import looking
from torchloom.launch.relay.ranks import Ranks, Seat

APART = 0.3  # seconds between the two looks
_ANSWER = 0.5  # seconds in which a threadlet that may run answers
_AT_ONCE = 4  # processes that are looked at together

Publish = Callable[[Stacks], Awaitable[None]]


class StackTaker:
    """Looks at ranks from outside and asks their threadlets beside; the better answer counts."""

    def __init__(
        self,
        agent: str,
        ranks: Ranks,
        publish: Publish,
        is_alive: Callable[[int, int], bool],
        program: str | None = None,
    ) -> None:
        self._agent = agent
        self._ranks = ranks
        self._publish = publish
        self._is_alive = is_alive
        self._program = program or looking.py_spy()
        self._asked: dict[str, asyncio.Future[tuple[Thread, ...]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    def start(self, wanted: TakeStacks) -> None:
        """Look at those of the named lives that are here; what was seen is published."""
        for seat in self._ranks.seats(frozenset(wanted.lives)):
            task = asyncio.create_task(self._report(seat, wanted.request), name="stacks")
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

    async def _report(self, seat: Seat, request: str) -> None:
        head = seat.register.head
        async with self._room:
            first, _ = await self._look(seat)
            await asyncio.sleep(APART)
            last, is_silent = await self._look(seat)
        said = Stacks(head, self._agent, request, (first, last), is_silent)
        with contextlib.suppress(BusLost):  # whoever asked looks again
            try:
                await self._publish(said)
            except TooLong:
                bare = tuple(_main_only(look) for look in said.looks)
                await self._publish(msgspec.structs.replace(said, looks=bare))

    async def _look(self, seat: Seat) -> tuple[Look, bool]:
        """Return what is seen of a process now, and whether its threadlet kept silent."""
        pid, started = seat.process
        answer = asyncio.create_task(self._ask(seat))
        try:
            threads, note = await self._outside(pid)
            own = await answer
        finally:
            answer.cancel()
        seen = looking.kernel_sees(pid) if self._is_alive(pid, started) else Look(0.0, 0.0, "")
        if not seen.state:
            return msgspec.structs.replace(seen, note="the process is gone"), own is None
        seen = self._with_progress(seat, seen)
        if not threads and own:
            text = tuple(_with_text(thread) for thread in own)
            return msgspec.structs.replace(seen, source="threadlet", threads=text, note=note), False
        source = "py-spy" if threads else ""
        return msgspec.structs.replace(seen, source=source, threads=threads, note=note), own is None

    def _with_progress(self, seat: Seat, seen: Look) -> Look:
        """Return a look with what the rank's own page says at that moment."""
        read = self._ranks.progress_of(seat)
        if read is None:
            return seen
        word = {"step": read.step, "phase": read.phase}
        return msgspec.structs.replace(seen, **word, still=read.moved, lasted=read.step_seconds)

    async def _outside(self, pid: int) -> tuple[tuple[Thread, ...], str]:
        try:
            return await looking.threads_of(pid, self._program), ""
        except looking.CannotLook as error:
            return (), str(error)

    async def _ask(self, seat: Seat) -> tuple[Thread, ...] | None:
        if seat.line is None:
            return None
        name = uuid.uuid4().hex[:16]
        waiting: asyncio.Future[tuple[Thread, ...]] = asyncio.get_running_loop().create_future()
        self._asked[name] = waiting
        seat.line.send(ShowStacks(seat.register.head, name))
        try:
            async with asyncio.timeout(_ANSWER):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._asked[name]


def _main_only(look: Look) -> Look:
    main = tuple(thread for thread in look.threads if thread.is_main)
    return msgspec.structs.replace(look, threads=main)


def _with_text(thread: Thread) -> Thread:
    if not thread.frames:
        return thread
    frames = (looking.with_text(thread.frames[0]), *thread.frames[1:])
    return Thread(thread.name, thread.is_main, frames)
