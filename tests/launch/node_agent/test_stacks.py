"""An agent looks at real processes: from outside, by asking them, and by the kernel alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from torchloom.bus.progress_page import ProgressPage, StepPhase
from torchloom.launch.node_agent import server, stacks
from torchloom.launch.node_agent.server import KnownRanks
from torchloom.launch.node_agent.stacks import (
    APART,
    CannotLook,
    StackTaker,
    kernel_sees,
    threads_of,
)
from torchloom.messages.plane import (
    VERSION,
    Frame,
    Head,
    Message,
    OwnStacks,
    ShowStacks,
    TakeStacks,
    Thread,
)
from torchloom.messages.plane import Stacks as Seen

from ...harness.async_wait import come_true, live
from ...harness.home import until
from ...harness.message_samples import REGISTER

pytestmark = pytest.mark.process
LIFE = Head(VERSION, "job", 0, 1, "life-a")
SLEEPER = "import sys, time\nprint(1, flush=True)\ntime.sleep(1000)\n"
WORKER = "print(1, flush=True)\nwhile True: pass\n"
NO_SPY = "/nonexistent/py-spy"

Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start programs that say when they are there; they are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def program(text: str) -> "subprocess.Popen[bytes]":
        path = tmp_path / f"program{len(started)}.py"
        path.write_text(text)
        return start(sys.executable, str(path))

    yield lambda text="", *words: program(text) if text else start(*words)
    for process in started:
        process.kill()
        process.communicate()


def sleeper(begin: Begin) -> "subprocess.Popen[bytes]":
    """Start a program and come back when it sleeps; on a full machine that is later."""
    process = begin(SLEEPER)
    until(lambda: kernel_sees(process.pid).state == "S")
    return process


class Line:
    """A rank's connection; its threadlet answers with these threads, or not at all."""

    def __init__(
        self, pid: int, threads: tuple[Thread, ...] | None = None, page: ProgressPage | None = None
    ) -> None:
        self.pid = pid
        self.page = page
        self.asked = 0
        self.started = server.start_time(pid)
        self.threads = threads
        self.taker: StackTaker | None = None

    def send(self, message: Message) -> None:
        assert isinstance(message, ShowStacks)
        self.asked += 1
        if self.page is not None:
            self.page.boundary(19 + self.asked, self.asked, 250_000_000, time.monotonic_ns())
        if self.threads is not None and self.taker is not None:
            self.taker.answered(OwnStacks(message.head, message.request, self.threads))


async def seen_of(line: Line, program: str | None = None) -> Seen:
    """Return what an agent says of one rank."""
    ranks, said = KnownRanks(), list[Seen]()
    page = str(line.page.path) if line.page else ""
    register = msgspec.structs.replace(REGISTER, head=LIFE, page=page)
    ranks.register(register, line)

    async def publish(seen: Seen) -> None:
        said.append(seen)

    def is_alive(pid: int, started: int) -> bool:
        return server.start_time(pid) == started != 0

    taker = line.taker = StackTaker("here", ranks, publish, is_alive, program)
    taker.start(TakeStacks(LIFE, 1, "s1", ("life-a", "life-b")))
    await come_true(lambda: said)
    await taker.close()
    (seen,) = said
    return seen


def test_a_process_is_seen_twice_from_outside_and_not_disturbed(begin: Begin) -> None:
    process = sleeper(begin)

    seen = asyncio.run(seen_of(Line(process.pid)))

    first, last = seen.looks
    assert (seen.head, seen.agent, seen.request, seen.is_silent) == (LIFE, "here", "s1", True)
    assert last.at - first.at >= APART
    assert [look.source for look in seen.looks] == ["py-spy", "py-spy"]
    (main,) = last.threads
    (frame,) = main.frames
    assert (main.is_main, frame.function, frame.line) == (True, "<module>", 3)
    assert frame.text == "time.sleep(1000)"
    assert (last.state, kernel_sees(process.pid).state) == ("S", "S")


def test_a_stopped_process_stays_stopped(begin: Begin) -> None:
    process = begin(SLEEPER)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)

    seen = asyncio.run(seen_of(Line(process.pid)))

    assert [(look.state, look.source) for look in seen.looks] == [("T", "py-spy")] * 2
    assert kernel_sees(process.pid).state == "T"


def test_each_look_has_what_the_ranks_own_page_says_at_that_moment(
    begin: Begin, tmp_path: Path
) -> None:
    page = ProgressPage.open(tmp_path / "page")
    page.enter(StepPhase.STEP, time.monotonic_ns())

    seen = asyncio.run(seen_of(Line(begin(SLEEPER).pid, (), page)))

    assert [(look.step, look.phase, look.lasted) for look in seen.looks] == [
        (20, StepPhase.STEP, 0.25),
        (21, StepPhase.STEP, 0.25),
    ]
    assert all(0.0 < look.still < 30.0 for look in seen.looks)


def test_without_a_page_a_look_has_no_step(begin: Begin) -> None:
    seen = asyncio.run(seen_of(Line(begin(SLEEPER).pid)))

    assert [(look.step, look.phase) for look in seen.looks] == [(-1, -1)] * 2


def test_the_cpu_that_a_process_uses_is_seen(begin: Begin) -> None:
    process = begin(WORKER)

    first = kernel_sees(process.pid)
    deadline = time.monotonic() + 30
    while kernel_sees(process.pid).cpu < first.cpu + 0.1:
        assert time.monotonic() < deadline

    assert kernel_sees(process.pid).state == "R"


def test_where_nobody_may_look_the_threadlet_is_believed(begin: Begin) -> None:
    process = sleeper(begin)
    own = (Thread("MainThread", True, (Frame("<module>", "gone.py", 3),)),)

    seen = asyncio.run(seen_of(Line(process.pid, own), NO_SPY))

    assert not seen.is_silent
    assert [(look.source, look.threads) for look in seen.looks] == [("threadlet", own)] * 2
    assert seen.looks[0].note.startswith("py-spy does not start:")
    assert seen.looks[0].state == "S"


def test_where_nobody_answers_either_the_kernel_is_left(begin: Begin) -> None:
    process = sleeper(begin)

    seen = asyncio.run(seen_of(Line(process.pid), NO_SPY))

    assert seen.is_silent
    assert [(look.source, look.threads, look.state) for look in seen.looks] == [("", (), "S")] * 2


def test_a_program_that_is_not_python_is_seen_by_the_kernel_alone(begin: Begin) -> None:
    process = begin("", "sh", "-c", "echo 1; exec sleep 1000")

    with pytest.raises(CannotLook, match=r"^py-spy: "):
        asyncio.run(threads_of(process.pid, stacks.py_spy()))


def test_a_process_that_is_gone_is_no_other_one(begin: Begin) -> None:
    process = begin(SLEEPER)
    line = Line(process.pid)
    line.started += 1  # a later one has its number

    seen = asyncio.run(seen_of(line))

    assert [(look.state, look.note) for look in seen.looks] == [("", "the process is gone")] * 2


def test_a_file_that_is_none_gives_no_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.py"
    os.mkfifo(fifo)
    frames = [Frame("f", str(fifo), 3), Frame("f", "<string>", 3), Frame("f", "/", 3)]

    assert [stacks.with_text(frame) for frame in frames] == frames


def test_looks_that_are_under_way_are_left_when_the_agent_leaves(begin: Begin) -> None:
    process = begin(SLEEPER)

    async def story() -> int:
        ranks, said = KnownRanks(), list[Seen]()
        register = msgspec.structs.replace(REGISTER, head=LIFE)
        ranks.register(register, Line(process.pid))

        async def publish(seen: Seen) -> None:
            said.append(seen)

        taker = StackTaker("here", ranks, publish, lambda pid, started: True)
        taker.start(TakeStacks(LIFE, 1, "s1", ("life-a",)))
        await asyncio.sleep(0)
        await taker.close()
        return len(said)

    assert live(story) == 0
