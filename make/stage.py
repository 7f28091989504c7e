"""Where the demo runs: folders of its own, commands run in them, and nothing left behind."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from witness import processes_named, processes_with

ROOT = Path(__file__).resolve().parents[1]
RANKS = range(4)
LIMIT = 300.0  # seconds; on a quiet machine it takes a fifth of that
BIN = Path(sys.executable).parent


BOLD, GREEN = "1", "32"


class NotShown(Exception):
    """A part of the demo failed; the message says what was missing."""


def styled(text: str, style: str) -> str:
    """Return the text in a style on a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or not sys.stdout.isatty()
    return text if plain else f"\033[{style}m{text}\033[0m"


def show_command(words: str) -> None:
    """Print a command as it is typed."""
    print(f"   $ {styled(words, BOLD)}", flush=True)


def show_result(text: str) -> None:
    """Print what a part of the demo has shown."""
    print(styled(f"    => {text}", GREEN), flush=True)


def until(happened: Callable[[], bool]) -> None:
    """Wait for a condition; an alarm limits the wait."""
    while not happened():
        time.sleep(0.1)


class Stage:
    """A state folder, a plane and a zygote that are not the user's, and the commands run there."""

    def __init__(self, home: Path, **more: str) -> None:
        self.home = home
        self._end = time.monotonic() + LIMIT
        self._runtime = Path(tempfile.mkdtemp(prefix="loom-demo-"))  # short: it is for sockets
        chosen = ("LOOM_", "torchLoom_")  # a user's own choices would be another demo
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(chosen)},
            "LOOM_HOME": str(home),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "PYTHONUNBUFFERED": "1",
            **more,
        }

    def loom(self, *words: str) -> str:
        """Run a loom command, show its output as it comes, and return it; it must succeed."""
        lines: list[str] = []
        with subprocess.Popen(
            [str(BIN / "loom"), *words],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    print(f"    {line.rstrip()}", flush=True)
                    lines.append(line)
            except BaseException:  # it must not be waited for: it may have no end
                process.terminate()
                raise
        if process.returncode:
            raise NotShown(f"`loom {shlex.join(words)}` ended with code {process.returncode}")
        return "".join(lines)

    def ask(self, *words: str, limit: float = 15) -> str:
        """Run a loom command unseen; return what it printed, nothing when it failed."""
        command = [str(BIN / "loom"), *words]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command, env=self._env, capture_output=True, text=True, timeout=limit, check=False
            )
            return "" if done.returncode else done.stdout
        return ""

    def arm(self) -> None:
        """Have the alarm end the demo when its time is over, whatever it waits for."""
        signal.signal(signal.SIGALRM, _time_is_over)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, self._end - time.monotonic()))

    def clear(self) -> list[str]:
        """End what still runs here; return what should not have been left."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.ask("down")
        leave = "from torchloom.launch.keeper import zygote_client as warm; warm.leave_all()"
        subprocess.run([sys.executable, "-c", leave], env=self._env, check=False)
        if left := self._settle(3.0):
            self.ask("stop", "--now", "@")
            left = self._settle(10.0)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remains = [f"process {pid}" for pid in left] + self._files()
        shutil.rmtree(self._runtime)
        return remains

    def _settle(self, patience: float) -> list[int]:
        end = time.monotonic() + patience
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def _left(self) -> list[int]:
        mine = processes_with(f"LOOM_HOME={self.home}") + processes_named(str(self._runtime))
        return sorted(set(mine))

    def _files(self) -> list[str]:
        """Return what lies where only living processes keep something: sockets, shared memory."""
        runs = self.home / "runs"
        jobs = [run.name for run in runs.iterdir()] if runs.exists() else []
        shared = [page for job in jobs for page in Path("/dev/shm").glob(f"*{job}*")]
        sockets = [path for path in self._runtime.rglob("*") if path.is_socket()]
        return [str(path) for path in (*shared, *sockets)]


def _time_is_over(signum: int, frame: FrameType | None) -> None:
    raise NotShown(f"it took longer than {LIMIT:.0f} s")
