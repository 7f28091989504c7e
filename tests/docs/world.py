"""A fresh place for the commands of one page: folder, home, plane, and what the page needs."""

import contextlib
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..harness.cluster import Cluster
from ..harness.home import app_ids
from ..harness.postgres_server import running_postgres
from ..harness.s3_server import running_s3

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds; of two loaded cores each page took up to 71 in all
PROBES: dict[str, tuple[str, ...]] = {  # what a page may need: its probes in tests/conftest.py
    "accelerate": ("accelerate",),
    "browser": ("browser",),
    "docker": ("docker",),
    "jax": ("jax",),
    "lightning": ("lightning",),
    "netns": ("netns", "ssh"),
    "postgres": (),  # running_postgres skips
    "s3": ("s3",),
    "slurm": ("netns", "slurmd", "ssh"),
    "tmux": ("tmux",),
    "torch": ("torch",),
    "transformers": ("transformers",),
}
_KEPT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", "VIRTUAL_ENV")  # of the test's environment
# The shell of a page: it keeps its variables and its folder from line to line.
_LINE = """
. "$PAGE_SHELL/variables"; cd "$(cat "$PAGE_SHELL/folder")"
trap 'export -p > "$PAGE_SHELL/variables"; pwd > "$PAGE_SHELL/folder"' EXIT
eval "$1"
"""
_LEAVE = "from torchloom.launch.keeper import zygote_client as z; z.leave_all()"


@dataclass(frozen=True, slots=True)
class World:
    """Where a page's commands run; with a cluster, on its host `ctl`."""

    base: Path
    env: dict[str, str]
    cluster: Cluster | None

    @property
    def folder(self) -> Path:
        """The folder in which the reader of the page works."""
        return self.base / "ada" / "project"

    def here(self, text: str) -> str:
        """Return a line of the page with the names of this machine, user and place."""
        host = "ctl" if self.cluster else socket.gethostname()
        text = text.replace("/home/ada", str(self.base / "ada"))
        text = re.sub(r"\blaptop\b", host, text)
        return re.sub(r"(?<![/A-Za-z0-9])ada(?![A-Za-z0-9])", getpass.getuser(), text)

    def shell(self, words: str, timeout: float = PATIENCE) -> tuple[int, str]:
        """Run one line by bash; return its exit code and what it printed on both streams."""
        argv = ["bash", "-c", _LINE, "bash", words]
        with tempfile.TemporaryFile("w+") as output:  # a pipe would wait for what stays behind
            process = self._start(argv, output.fileno())
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = 124
            output.seek(0)
            return code, output.read()

    def _start(self, argv: list[str], output: int) -> subprocess.Popen[str]:
        if self.cluster:
            words = ["env", "-i", *(f"{name}={value}" for name, value in self.env.items()), *argv]
            return self.cluster.popen("ctl", words, stdout=output, stderr=output)
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            text=True,
        )


@contextlib.contextmanager
def world(needs: tuple[str, ...]) -> Iterator[World]:
    """Prepare a place; afterwards nothing of it may run on.

    Hosts are raised for this page alone: a Slurm remembers the jobs of others, and lists them.
    """
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(_folder()))
        cluster = None
        if {"slurm", "netns"} & set(needs):
            cluster = stack.enter_context(Cluster()).with_ssh()
            if "slurm" in needs:
                cluster.with_slurm()
        env = _environment(base, cluster) | _services(needs, base, stack)
        place = World(base, env, cluster)
        _furnish(place)
        try:
            yield place
        except BaseException:
            with contextlib.suppress(Exception):  # what the page has shown is the failure
                _leave(place)
            raise
        _leave(place)


def _folder() -> "tempfile.TemporaryDirectory[str]":
    # What a failed page has started may write there for a moment yet.
    return tempfile.TemporaryDirectory(prefix="page-", dir="/tmp", ignore_cleanup_errors=True)


def _environment(base: Path, cluster: Cluster | None) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        **(cluster.env if cluster else {}),
        "PATH": f"{cluster.bin}:{path}" if cluster else path,
        "HOME": str(base / "ada"),
        "USER": getpass.getuser(),
        "LOOM_HOME": str(base / "ada" / ".torchloom"),
        "PAGE_SHELL": str(base / "shell"),
        "LOOM_DASHBOARD": "none",  # whether one is built here or not
        "XDG_RUNTIME_DIR": "/run/user/0" if cluster else str(base / "run"),
    }


def _services(needs: tuple[str, ...], base: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Start the servers that a page needs; return the variables by which it reaches them."""
    env: dict[str, str] = {}
    if "s3" in needs:
        server = stack.enter_context(running_s3(base / "s3"))
        env |= {**server.env, "S3": server.url("runs")}
    if "postgres" in needs:
        env["POSTGRES_URL"] = stack.enter_context(running_postgres())
    return env


def _furnish(place: World) -> None:
    for name in ("ada/project", "ada/.torchloom", "run", "shell"):
        (place.base / name).mkdir(mode=0o700, parents=True)
    (place.base / "shell" / "variables").touch()
    (place.base / "shell" / "folder").write_text(f"{place.folder}\n")
    for name in ("examples", "nats"):
        shutil.copytree(ROOT / name, place.folder / name)


def _leave(place: World) -> None:
    """End what the page has left behind, as its reader would; fail when something stays.

    Jobs of an engine run on, with their planes: those end with their hosts.
    """
    jobs = app_ids(Path(place.env["LOOM_HOME"]))
    back = f"cd {place.folder}; export LOOM_HOME={place.env['LOOM_HOME']}"
    stop = "; ".join(f"loom stop --now {job}" for job in jobs)
    place.shell(f"{back}; {stop or ':'}; loom down; python -c {shlex.quote(_LEAVE)}")
    if place.cluster:
        place.cluster.reset()
    left = _leaving(f"LOOM_HOME={place.env['LOOM_HOME']}".encode())
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shared = [name for name in os.listdir("/dev/shm") if any(job in name for job in jobs)]
    assert (left, shared) == ({}, []), f"left by the page: {left} {shared}"


def _leaving(variable: bytes) -> dict[int, str]:
    """Return the processes of this environment that are still there after a while."""
    end = time.monotonic() + 60
    while (left := dict(_processes(variable))) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _processes(variable: bytes) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if variable in entry.read_bytes().split(b"\0"):
                words = (entry.parent / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(entry.parent.name), words.decode(errors="replace")
