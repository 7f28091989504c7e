"""The tutorial tells the truth: its blocks are run, in order, and print what the page shows."""

import contextlib
import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
BLOCK = re.compile(r"^```console( refused)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE = 90.0  # seconds; generous, for loaded machines
ONCE = re.compile(r"=|\b(up$|run|python|pause|resume|recover|kill|stop|down)\b")
STANDINS = (  # what is another where the page is read, and what it may be
    (r"step \d+", r"step \\d+"),
    (r"acked in \d+ ms", r"acked in [\\d.]+ m?s"),
    (r"\b(left|right)-[a-z0-9]{13}\b", r"\1-[a-z0-9]{13}"),
    (r"\d+-\d+-\d+T\d+:\d+:\d+", r"\\S+"),
    (r"^- id: [0-9a-f]+", r"- id: [0-9a-f]+"),
    (r"pid \d+, up \d+s", r"pid \\d+, up \\S+"),
    (r"(PAUSED|RUNNING) \d+ \d+s", r"\1 \\d+ \\S+"),
    (r"loss [\d.]+", r"loss \\S+"),
    (r"[\d.]+% right", r"\\S+% right"),
)


class Command(NamedTuple):
    """One line that is typed, what must be seen then, and whether it is refused."""

    words: str
    expected: list[str]
    refused: bool

    def matches(self, said: str) -> bool:
        return re.fullmatch("\n".join(map(pattern, self.expected)), squeezed(said)) is not None


def commands() -> list[Command]:
    """Return all that the page types, in its order."""
    found: list[Command] = []
    for refused, block in BLOCK.findall(PAGE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(here(line[2:]), [], bool(refused)))
            else:
                found[-1].expected.append(line)
    return found


def here(text: str) -> str:
    """Return a line of the page with the names of this machine and user."""
    return text.replace("laptop", socket.gethostname()).replace("ada", getpass.getuser())


def pattern(line: str) -> str:
    """Return what a line of the page stands for."""
    if line == "...":
        return r"(?:.|\n)*"
    line = squeezed(here(line))
    for shown, meant in STANDINS:
        line = re.sub(shown, lambda found, meant=meant: f"\0{found.expand(meant)}\0", line)
    plain, special = line.split("\0")[::2], line.split("\0")[1::2]
    parts = [re.escape(part).replace(r"\.\.\.", ".*") for part in plain]
    return "".join(a + b for a, b in zip(parts, [*special, ""], strict=True))


def squeezed(text: str) -> str:
    """Return lines without the spaces that only make columns."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the reader of the page a home and a plane of their own; then look what is left."""
    with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as name:
        for variable in ("LOOM_HOME", "XDG_RUNTIME_DIR"):
            (Path(name) / variable).mkdir(mode=0o700)
            monkeypatch.setenv(variable, str(Path(name) / variable))
        for variable in ("LOOM_PLANE", "LOOM_WARM", "LOOM_JOB", "LOOM_NATS", "torchLoom_ADDR"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setenv("LOOM_DASHBOARD", "none")  # whether one is built here or not
        yield Path(name)
        shell("loom stop --now left right; loom down")
        shell("python -c 'from torchloom.launch.keeper import zygote_client as z; z.leave_all()'")
        left = leaving(f"LOOM_HOME={name}/LOOM_HOME".encode())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert left == []


def shell(words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def leaving(variable: bytes) -> list[int]:
    """Return the processes of this environment that are still there after a while."""
    end = time.monotonic() + 10
    while (left := list(processes(variable))) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def processes(variable: bytes) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)
        except OSError:
            continue


@pytest.mark.process
@pytest.mark.needs("torch")
def test_every_block_of_the_tutorial_prints_what_the_page_shows(place: Path) -> None:
    for command in commands():
        end = time.monotonic() + PATIENCE
        done = shell(command.words)
        # What only looks is looked at again: ranks take a while to begin, and to end.
        while not (command.matches(done.stdout) or ONCE.search(command.words)):
            assert time.monotonic() < end, (command, done.stdout)
            time.sleep(0.2)
            done = shell(command.words)

        assert done.returncode == (2 if command.refused else 0), (command, done.stdout)
        assert command.matches(done.stdout), (command, done.stdout)

    jobs = [run.name for run in (place / "LOOM_HOME/runs").iterdir()]
    assert [name for name in os.listdir("/dev/shm") if any(job in name for job in jobs)] == []
