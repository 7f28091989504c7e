"""A node for tests: an agent and its ranks, as processes of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from ...harness.async_wait import come_true

RANK = Path(__file__).with_name("fake_rank.py")
JOB = "bad-day-1"


class Node:
    """An agent called `here` and ranks of one job."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.socket = folder / "run" / "agent.sock"
        self._url = url
        self._agent: subprocess.Popen[bytes] | None = None
        self._ranks: list[subprocess.Popen[bytes]] = []
        (folder / "ranks").mkdir()

    def agent_command(self, *more: str) -> list[str]:
        words = [sys.executable, "-m", "torchloom.launch.node_agent", "--agent", "here"]
        places = ["--runtime", str(self.folder / "run"), "--home", str(self.folder / "home")]
        return [*words, *places, "--nats", self._url, *more]

    def start_agent(self, *more: str) -> None:
        with open(self.folder / "agent.log", "ab") as log:
            self._agent = subprocess.Popen(self.agent_command(*more), stdout=log, stderr=log)

    @property
    def agent_pid(self) -> int:
        assert self._agent is not None
        return self._agent.pid

    def kill_agent(self, signum: int = signal.SIGKILL) -> int:
        assert self._agent is not None
        self._agent.send_signal(signum)
        return self._agent.wait()

    def start_rank(self, rank: int) -> subprocess.Popen[bytes]:
        diary = self.folder / f"diary-{rank}"
        words = [sys.executable, str(RANK), str(self.socket), str(diary), JOB, str(rank)]
        env = {**os.environ, "LOOM_JOB": JOB}
        process = subprocess.Popen([*words, str(self.folder / "ranks")], env=env)
        self._ranks.append(process)
        return process

    async def finish(self) -> list[int]:
        """Let the ranks come to their end and return how each did."""
        (self.folder / "ranks" / "enough").touch()
        await come_true(lambda: all(rank.poll() is not None for rank in self._ranks))
        return [rank.returncode for rank in self._ranks]

    def diary(self, rank: int) -> list[tuple[str, int]]:
        """Return what a rank noted itself: each life and step."""
        lines = (self.folder / f"diary-{rank}").read_text().splitlines()
        return [(life, int(step)) for life, step in map(str.split, lines)]

    def end(self) -> None:
        for process in (*self._ranks, *([self._agent] if self._agent else [])):
            process.kill()
            process.wait()
