"""Ranks of one host that are forked from a process with torch, and an agent to steer them."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from torchloom.messages.plane import Register

from ...harness.forked_ranks import Zygote, seats, warm_zygote
from .fake_agent import FakeAgent, listening

SCRIPTS = Path(__file__).parent / "scripts"
_CLOSED = """
from torchloom.worker.threadlet.threadlet import current
current().close()
"""


class Ranks:
    """Starts a script in forks, with a threadlet attached as our own entry does it."""

    def __init__(self, zygote: Zygote, folder: Path, agent: FakeAgent) -> None:
        self.folder = folder
        self.agent = agent
        self._zygote = zygote
        self._pool = ThreadPoolExecutor(1)
        self._starts = 0

    def start(
        self, script: str, world: int = 1, attach: bool = True, **more: str
    ) -> "Future[list[tuple[int, str]]]":
        """Start a script of `scripts`; the future has exit codes and what was printed."""
        self._starts += 1  # each generation has a store of its own
        meeting = self.folder / f"meeting-{self._starts}"
        meeting.mkdir()
        store = f"file://{meeting}/store" if world > 1 else ""
        told = seats(world, 1, store, LOOM_JOB="job", LOOM_ROLE="trainer", LOOM_NODE="here", **more)
        for rank, seat in enumerate(told):
            seat["OUT"] = str(self.folder / f"rank-{rank}")
            if attach:
                seat.setdefault("LOOM_AGENT", str(self.agent.path))
                seat.setdefault("LOOM_PAGE", str(self.folder / f"page-{rank}"))
        text = "from torchloom.worker.threadlet import attach\nattach.attach()\n" * attach
        text += (SCRIPTS / script).read_text()
        return self._pool.submit(self._zygote.run, text, told)

    def run(self, script: str, world: int = 1, attach: bool = True, **more: str) -> list[str]:
        """Run a script to its end; return what each rank printed."""
        return self.printed(self.start(script, world, attach, **more))

    def run_and_close(self, script: str, world: int = 1, **more: str) -> list[str]:
        """Do the same, and send what was logged last, as an interpreter's exit does."""
        return self.run(self.closing(script), world, **more)

    def closing(self, script: str) -> str:
        """Return a script that does the same, and at its end what an interpreter's exit does."""
        path = self.folder / "closing.py"
        path.write_text((SCRIPTS / script).read_text() + _CLOSED)
        return str(path)

    def printed(self, running: "Future[list[tuple[int, str]]]") -> list[str]:
        """Return what each rank printed, once all ended well and were heard out."""
        ended = running.result(timeout=60)
        assert [code for code, _ in ended] == [0] * len(ended), ended
        self.agent.wait_for_silence()
        return [text for _, text in ended]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready


@pytest.fixture
def ranks(zygote: Zygote) -> Iterator[Ranks]:
    with contextlib.ExitStack() as stack:
        name = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loom-test-")
        folder = Path(stack.enter_context(name))
        agent = stack.enter_context(listening(folder / "agent"))
        yield Ranks(zygote, folder, agent)
        for rank in agent.of(Register):  # of a test that failed half way
            if alive(rank):
                os.kill(rank.pid, signal.SIGKILL)


def alive(rank: Register) -> bool:
    """Tell whether this very life of a rank goes on, by the kernel's word."""
    try:
        fields = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == rank.started
