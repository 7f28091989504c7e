"""`loom run -s ENGINE` on the hosts of a test: submit, see what became of it, from outside."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jsonschema import Draft202012Validator

from ..harness.cluster import Cluster
from ..harness.home import until
from ..harness.repositories import committed, git

SCHEMAS = Path(__file__).parents[2] / "docs" / "json"
SCHEMA = json.loads((SCHEMAS / "show-engine.schema.json").read_text())
LOOM = (sys.executable, "-m", "torchloom")
LIMIT = 90.0
TRAINING = Path(__file__).with_name("engine_training.py")
HOLD = "import time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
SECRET = "hunter2-in-the-environment"
ODD = {
    "WITH_COMMA": "a,b,,c",
    "WITH_NEWLINE": "one\ntwo\n",
    "WITH_QUOTES": 'it\'s "so" $HOME `touch pwned` $(touch pwned) \\ * ; touch pwned',
    "WITH_UNICODE": "grüße 織機",
    "LONG": "x" * 10_000,
    "EMPTY": "",
}

# Every rank writes down what it is and where, before it does what the test asks for.
REPORT = """
import json, os, socket, sys
told = {"host": socket.gethostname(), "argv": sys.argv[1:], "env": dict(os.environ),
        "cwd": os.getcwd(), "pid": os.getpid(), "python": sys.executable}
name = os.environ.get("RANK", "x") + "-" + os.environ.get("REPLICA", "0")
with open(os.environ["REPORTS"] + "/" + name, "a") as report:
    report.write(json.dumps(told) + "\\n")
"""

# What ends it only when it has been told to, and has written down what it had.
SAVER = """
import pathlib, signal, threading, time
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
place = pathlib.Path(os.environ["REPORTS"]).parent
(place / f"ready-{os.environ['RANK']}").touch()
told.wait()
(place / f"saving-{os.environ['RANK']}").touch()
time.sleep(1.5)
(place / f"saved-{os.environ['RANK']}").touch()
"""
LOGIN = {"XDG_RUNTIME_DIR": "/run/user/of-a-login"}  # a folder that its host alone has


@dataclass
class Jobs:
    """What one test submits, from the login node `ctl`."""

    engine: ClassVar[str]
    cluster: Cluster
    home: Path
    folder: Path
    host: str = "ctl"

    def script(self, text: str, name: str = "train.py") -> Path:
        """Write the program of the ranks; it reports before anything else."""
        self.reports.mkdir(exist_ok=True)
        path = Path(name).absolute()
        path.write_text(REPORT + text)
        return path

    def repository(self) -> tuple[str, bytes]:
        """Have the current folder be a repository, and what is in it be changed since its commit.

        Return that commit and the difference, as git itself tells them.
        """
        commit, here = committed(Path()), Path()
        for path in here.glob("*.py"):
            path.write_text(path.read_text() + "\n# changed")
        return commit, git(here, "diff", "HEAD")

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def variables(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"XDG_RUNTIME_DIR": "/run/loom", "REPORTS": str(self.reports)}
        return own | dict(env or {})

    @property
    def plane(self) -> dict[str, str]:
        """What has a job watched, and its ledgers written where the test finds them."""
        return {"LOOM_PLANE": "1", "OUT": str(self.folder), "OMP_NUM_THREADS": "1"}

    def loom(
        self, *words: str | Path, env: Mapping[str, str] | None = None, host: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        argv = [*LOOM, *words]
        return self.cluster.run(host or self.host, argv, self.variables(env), timeout=LIMIT)

    def start(
        self, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        return self.cluster.popen(self.host, [*LOOM, *words], self.variables(env))

    def said(self, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Run a command line that must succeed; return what it printed."""
        done = self.loom(*words, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Submit and return the handle."""
        return self.said("run", "-d", "-s", self.engine, *words, env=env).split("\n")[0]

    def shown(self, handle: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.said("show", handle, "--json"))
        Draft202012Validator(SCHEMA).validate(found)
        return found

    def ended(self, handle: str) -> dict[str, Any]:
        """Return how a job ended, once it has."""
        found: list[dict[str, Any]] = []

        def over() -> bool:
            found[:] = [self.shown(handle)]
            return found[0]["state"] in ("COMPLETED", "FAILED", "CANCELLED")

        until(over)
        return found[0]

    def told(self) -> dict[str, dict[str, Any]]:
        """Return what each rank wrote down in its latest life."""
        paths = sorted(self.reports.iterdir()) if self.reports.is_dir() else []
        whole = {path.name: path.read_text().rpartition("\n")[0] for path in paths}
        return {name: json.loads(text.split("\n")[-1]) for name, text in whole.items() if text}

    def output(self, handle: str) -> str:
        return (Path(self.shown(handle)["folder"]) / "out.log").read_text()

    def is_from(self, shown: Mapping[str, Any], commit: str, diff: bytes) -> None:
        """Check where a job was submitted from, as it is shown and as its folder keeps it."""
        assert (shown["cwd"], shown["commit"], shown["is_changed"]) == (os.getcwd(), commit, True)
        kept = Path(shown["folder"], "diff.patch")
        assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (diff, 0o600)

    def whole(self, handle: str, follower: "subprocess.Popen[str]") -> None:
        """Check four ranks on two hosts: who was where, what reached them, what was followed."""
        told = self.told()
        assert {rank: one["host"] for rank, one in told.items()} == {
            **dict.fromkeys(("0-0", "1-0"), "n1"),
            **dict.fromkeys(("2-0", "3-0"), "n2"),
        }
        assert {tuple(one["argv"]) for one in told.values()} == {("a b", "$(touch pwned)", "")}
        assert [{name: one["env"].get(name) for name in ODD} for one in told.values()] == [ODD] * 4
        assert {one["env"]["API_KEY"] for one in told.values()} == {SECRET}
        assert {one["env"]["TORCHX_JOB_ID"] for one in told.values()} == {handle}
        assert list(self.folder.rglob("pwned")) == []
        assert [path for path in self.holding(SECRET) if path.stat().st_mode & 0o077] == []
        out, _ = follower.communicate(timeout=LIMIT)
        assert sorted(out.splitlines()) == sorted(
            line for n in range(4) for line in (f"[rank{n}]: out {n}", f"[rank{n}]: bad")
        )

    def saver(self, ranks: int, env: Mapping[str, str] | None = None) -> str:
        """Submit ranks on hosts of their own that save when they are told to end, and take a while.

        Return the handle when all of them run.
        """
        words = ("-n", str(ranks), "--ppn", "1", self.script(SAVER))
        handle = self.submit(*words, env=env)
        ready = [self.folder / f"ready-{rank}" for rank in range(ranks)]
        until(lambda: all(path.exists() for path in ready), LIMIT)
        return handle

    def check_stop(self, ranks: int, env: Mapping[str, str] | None = None) -> None:
        """Check that a stop leaves ranks of all hosts their grace, and nothing of the job after."""
        handle = self.saver(ranks, {**LOGIN, "LOOM_PLANE": "1"})

        said = self.said("stop", handle, env=env)
        left = self.running("torchloom")
        ended = self.shown(handle)

        saved = [(self.folder / f"saved-{rank}").exists() for rank in range(ranks)]
        assert saved == [True] * ranks
        assert said == f"{handle} CANCELLED\n"
        assert (ended["state"], ended["reason"]) == ("CANCELLED", "cancelled_by_user")
        assert left == []

    python = sys.executable

    # A training of `engine_training.py`.

    def lives(self, rank: int) -> list[tuple[dict[str, Any], list[tuple[int, float]]]]:
        """Return each life of a rank: what it was, and the steps it has done with their lr."""
        found: list[tuple[dict[str, Any], list[tuple[int, float]]]] = []
        path = self.folder / f"rank-{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for line in [json.loads(line) for line in lines if line.endswith("\n")]:
            if isinstance(line, dict):
                found.append((line, []))
            else:
                found[-1][1].append((line[0], line[1]))
        return found

    def trains(self, lives: tuple[int, ...], beyond: int = 5) -> bool:
        """Tell whether each rank is in such a life, and some steps into it."""
        ranks = [self.lives(rank) for rank in range(len(lives))]
        counts = zip(ranks, lives, strict=True)
        return all(len(r) == many and len(r[-1][1]) > beyond for r, many in counts)

    def events(self, run_id: str) -> list[dict[str, Any]]:
        path = self.home / "runs" / run_id / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def kill_rank(self, host: str, rank: int) -> None:
        """Kill a rank by the number that it has on its host."""
        pid = self.lives(rank)[-1][0]["pid"]
        self.cluster.run(host, ["kill", "-9", str(pid)])

    def command_lines(self) -> list[str]:
        """Return the words of all that runs on all hosts."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [_words(pid) for pid in pids if self.cluster.host_of(pid)]

    def kill_all(self, words: str, signum: int = signal.SIGKILL) -> None:
        """Send a signal to all that runs on any host with these words in its command line."""
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            if self.cluster.host_of(pid) and words in _words(pid):
                os.kill(pid, signum)

    def running(self, words: str) -> list[str]:
        """Return the command lines, of all hosts, in which these words are."""
        return [line for line in self.command_lines() if words in line]

    def holding(self, text: str) -> list[Path]:
        """Return the files of the state folder in which a text is."""
        paths = [path for path in self.home.rglob("*") if path.is_file()]
        return [path for path in paths if text.encode() in path.read_bytes()]

    def counting(self, program: str) -> Path:
        """Have every call of a program be written down first; return where."""
        count, wrapper = self.folder / f"calls-of-{program}", self.cluster.bin / program
        wrapper.write_text(f'#!/bin/sh\necho "$*" >> {count}\nexec {shutil.which(program)} "$@"\n')
        wrapper.chmod(0o755)
        return count


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""
