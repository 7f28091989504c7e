"""Show torchLoom at work on this machine, in numbered acts that fail when they do not happen."""

import contextlib
import os
import platform
import re
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
LOOM = ".venv/bin/loom"
SCRIPT = "examples/pytorch/train_ddp.py"
LIMIT = 90.0
LOSS = re.compile(r"step\s+(\d+)\s+loss\s+([0-9.]+)")


class NotShown(Exception):
    """An act did not happen; the message says what was missing."""


class Stage:
    """A state folder of its own, and the commands run in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._end = time.monotonic() + LIMIT
        self._runtime = home / "run"  # its zygote is not to be the user's own
        self._runtime.mkdir(mode=0o700)
        self._env = {
            **{name: value for name, value in os.environ.items() if name != "LOOM_WARM"},
            "LOOM_HOME": str(home),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "PYTHONUNBUFFERED": "1",
        }

    def loom(self, *words: str) -> str:
        """Run a loom command, show its output as it comes, and return it; it must succeed."""
        command = [str(Path(sys.executable).parent / "loom"), *words]
        lines: list[str] = []
        with subprocess.Popen(
            command,
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

    def arm(self) -> None:
        """Have the alarm end the demo when its time is over, whatever it waits for."""
        signal.signal(signal.SIGALRM, _time_is_over)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, self._end - time.monotonic()))

    def clear(self) -> list[int]:
        """Stop what still runs here; return the processes that had to be killed."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        leave = "from torchloom.launch import warm; warm.leave_all()"
        subprocess.run([sys.executable, "-c", leave], env=self._env, check=False)
        stop = [str(Path(sys.executable).parent / "loom"), "stop", "--now", "@"]
        if left := self._settle(3.0):
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(stop, env=self._env, capture_output=True, timeout=15, check=False)
            left = self._settle(10.0)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _settle(self, patience: float) -> list[int]:
        end = time.monotonic() + patience
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def _left(self) -> list[int]:
        return processes_with(f"LOOM_HOME={self.home}") + processes_named(str(self._runtime))


def set_up(stage: Stage) -> None:
    """Say what is used and where it is."""
    show = "import torch; print(torch.__version__, torch.cuda.device_count())"
    said = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    torch, devices = said.stdout.split()
    version = stage.loom("--version").strip()
    if not re.search(r"\d+\.\d+", version):
        raise NotShown("`loom --version` names no version")
    print(f"    Python {platform.python_version()}, torch {torch}, GPUs: {devices}")
    print(f"    environment .venv, state of this demo {os.path.relpath(stage.home, ROOT)}")


def train(stage: Stage) -> None:
    """Train with four processes; the script's own losses must fall."""
    losses = [float(value) for _, value in LOSS.findall(stage.loom("run", "-n", "4", SCRIPT))]
    if len(losses) < 2 or not losses[-1] < losses[0]:
        raise NotShown(f"the loss did not fall: {losses}")
    print(f"    => the loss fell from {losses[0]:.4f} to {losses[-1]:.4f}")


def look(stage: Stage) -> None:
    """Ask for the run's state, from another process than the one that started it."""
    shown = stage.loom("show", "@")
    print()
    listed = stage.loom("ls")
    if not all("SUCCEEDED" in text or "COMPLETED" in text for text in (shown, listed)):
        raise NotShown("the run is not shown as succeeded")


def read_logs(stage: Stage) -> None:
    """Read what one rank wrote."""
    text = stage.loom("logs", "@", "--ranks", "2")
    if "rank 2 of 4" not in text or "rank 1 of 4" in text:
        raise NotShown("the log of rank 2 is not there, or not alone")


def start_again(stage: Stage) -> None:
    """Launch once more: the first run has left a warm interpreter behind."""
    began = time.monotonic()
    text = stage.loom("launch", "-n", "4", SCRIPT, "--steps", "1")
    if not LOSS.search(text):
        raise NotShown("the launched ranks trained no step")
    print(f"    => launched, trained a step and ended in {time.monotonic() - began:.1f} s")


ACTS: tuple[tuple[str, str, Callable[[Stage], None]], ...] = (
    ("What this demo uses.", f"{LOOM} --version", set_up),
    ("Four processes train a small model together (DDP).", f"{LOOM} run -n 4 {SCRIPT}", train),
    ("The run is remembered: any shell can ask for it.", f"{LOOM} show @; {LOOM} ls", look),
    ("What one rank of the four wrote.", f"{LOOM} logs @ --ranks 2", read_logs),
    (
        "Once more, where one would write torchrun: torch is imported already.",
        f"{LOOM} launch -n 4 {SCRIPT} --steps 1",
        start_again,
    ),
)
NEXT = (
    (f"{LOOM} run -n 2 train.py --your-flags", "your own script, unchanged"),
    (f"{LOOM} run -d -n 2 {SCRIPT} --steps 20000", "in the background"),
    (f"{LOOM} logs -f @", "follow it"),
    (f"{LOOM} stop @", "stop it"),
    (f"{LOOM} plan dist.ddp -j 1x2 --script train.py", "see what would run"),
    (f"{LOOM} --help", "everything else"),
)


def main() -> int:
    """Play the acts; return 0 when all of them happened and nothing is left."""
    signal.signal(signal.SIGTERM, _stop)
    began = time.monotonic()
    build = ROOT / ".build"
    build.mkdir(exist_ok=True)
    stage = Stage(Path(tempfile.mkdtemp(prefix="demo-", dir=build)))
    failure = "the demo was interrupted"
    try:
        stage.arm()
        for number, (what, typed, act) in enumerate(ACTS, 1):
            print(f"\n{bold(f'{number}. {what}')}\n   $ {typed}", flush=True)
            act(stage)
        failure = ""
    except NotShown as error:
        failure = str(error)
    except (KeyboardInterrupt, SystemExit):
        print()
    finally:
        left = stage.clear()
    failure = failure or (f"processes were left behind: {left}" if left else "")
    return close(stage, failure, time.monotonic() - began)


def close(stage: Stage, failure: str, seconds: float) -> int:
    """Say how it went; the state of a failed demo stays for a look."""
    if failure:
        kept = os.path.relpath(stage.home, ROOT)
        print(f"demo: {failure} (its state is kept in {kept})", file=sys.stderr)
        return 1
    shutil.rmtree(stage.home)
    print(f"\n{bold('Next commands to try:')}")
    for command, what in NEXT:
        print(f"  {command}\n      {what}")
    print(f"\nAll {len(ACTS)} acts happened, no process is left ({seconds:.0f} s).")
    return 0


def bold(text: str) -> str:
    """Return the text in bold on a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or not sys.stdout.isatty()
    return text if plain else f"\033[1m{text}\033[0m"


def _time_is_over(signum: int, frame: FrameType | None) -> None:
    raise NotShown(f"it took longer than {LIMIT:.0f} s")


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
