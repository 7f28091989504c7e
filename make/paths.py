"""Run four call paths for real and list the files of torchloom that take part: `make paths`.

run     `loom run` until the first line of the user's program
set     `loom set` until its answer
metric  a rank's log until the answer of the HTTP API has the value
kill    kill -9 of a rank with policy live until all ranks train on
idle    some steps of a training that nothing is asked of: what runs in the background

A file takes part when one of its functions is called between the two marks of the path, in any
process; what runs at import does not count. Background work of that time, such as heartbeats, does;
`own` is a path without what a process does when idle, too.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from witness import processes_with

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PATHS = ("run", "set", "metric", "kill", "idle")
RANKS = 2
IDLE = 100  # steps, of some 30 ms
LIMIT = 60.0  # seconds for anything that is waited for
ROLES = {  # of a process, by the first of these that its command line has
    "loom-keeper": "keeper",
    "loom-launch": "launch",  # guard, supervisor and job agent are forks of one
    "torchloom.launch.supervisor.process": "launch",
    "torchloom.launch.node_agent": "node agent",
    "torchloom.plane": "plane",
    "torchloom.weaver": "weaver",
    "torchloom.server": "server",
    "torchloom.worker.process.zygote": "zygote",
    "bin/loom": "command",
    "paths_train.py": "rank",
}
Traced = dict[str, dict[str, list[str]]]  # by path: files by process


def main(words: list[str]) -> int:
    """Trace, write what was found, print a table."""
    parser = argparse.ArgumentParser(prog="make paths", description=__doc__)
    parser.add_argument("-n", type=int, default=3, help="trace each path so often")
    parser.add_argument("--out", type=Path, help="a file for all of it, as JSON")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the tree to trace")
    given = parser.parse_args(words)
    runs = trace(given.n, given.source)
    found = summary(runs)
    if given.out:
        facts = {
            "commit": _commit(given.source),
            "machine": _machine(),
            "paths": found,
            "runs": runs,
        }
        given.out.write_text(_text(facts) + "\n")
    for path in PATHS:
        print(f"{path:8} {found[path]['median']:5.0f} files, {found[path]['own']:.0f} of its own")
        for process, files in sorted(found[path]["by_process"].items()):
            print(f"         {len(files):5} {process}")
    return 0


def trace(times: int, source: Path = ROOT / "src") -> list[Traced]:
    """Run all paths so often, each time with another job of one plane; return what each saw."""
    with tempfile.TemporaryDirectory(prefix="loom-paths-") as name:
        stage = Stage(Path(name), source)
        try:
            stage.warm()
            return [stage.act(number) for number in range(times)]
        finally:
            stage.close()


def summary(runs: list[Traced]) -> dict[str, Any]:
    """Return, by path, how many files a run has in the middle, and all files by process."""
    found = {}
    idle = _by_role(runs, "idle")
    for path in PATHS:
        union = _by_role(runs, path)
        order = _in_order(runs, path)
        each = [_by_role([run], path) for run in runs]
        counts = [len(set().union(*those.values())) for those in each]
        own = [
            len({file for role, files in those.items() for file in files - idle.get(role, set())})
            for those in each
        ]
        found[path] = {
            "median": statistics.median(counts),
            "own": statistics.median(own),
            "counts": counts,
            "files": sorted(set().union(*union.values())),
            "by_process": order,
        }
    return found


def _by_role(runs: list[Traced], path: str) -> dict[str, set[str]]:
    """Return the files of a path in all of these runs, by what their processes are."""
    union: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for process, files in run[path].items():
            union[process.rpartition(" ")[0]].update(files)
    return union


def _in_order(runs: list[Traced], path: str) -> dict[str, list[str]]:
    """Return the files of a path by kind of process, in the order of their first calls."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for process, files in run[path].items():
            found[process.rpartition(" ")[0]].update(dict.fromkeys(files))
    return {process: list(files) for process, files in sorted(found.items())}


class Stage:
    """An environment whose interpreters are traced, a plane in it, and a job after the other."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder
        self._number = 0
        self._python, self.traced = _environment(folder / "env", source)
        for name in ("loom", "run", "work"):
            (folder / name).mkdir(mode=0o700)
        chosen = ("LOOM_", "torchLoom_")
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(chosen)},
            "LOOM_HOME": str(folder / "loom"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "OMP_NUM_THREADS": "1",
        }

    def warm(self) -> None:
        """Start the plane and a zygote, as a user has them at the second run."""
        self.loom("up")
        program = self.folder / "work" / "warm.py"
        program.write_text("import torch\n")
        _until(lambda: self._warmth(program) == "warm")

    def _warmth(self, program: Path) -> str:
        """Run a program and return how its rank was started: by a zygote, or why not."""
        self.loom("run", "-d", "--wait", str(program))
        newest = max(
            self.folder.glob("loom/runs/*/status.json"), key=lambda path: path.stat().st_mtime
        )
        (rank,) = json.loads(newest.read_text())["ranks"]
        return str(rank["warmth"])

    def act(self, number: int) -> Traced:
        """Follow the four paths in one job."""
        out = self.folder / f"out-{number}"
        out.mkdir()
        self._number = number
        job = _Job(self, out)
        try:
            for path in (job.run, job.idle, job.set, job.metric, job.kill):
                path()
            return self._collected()
        finally:
            job.end()

    def loom(self, *words: str) -> str:
        """Run a command to its good end and return what it printed."""
        done = subprocess.run(
            self.words(*words), env=self._env, capture_output=True, text=True, timeout=LIMIT
        )
        if done.returncode:
            raise RuntimeError(f"loom {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def begin(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command and do not wait for it."""
        with (self.folder / "command.log").open("ab") as log:
            return subprocess.Popen(
                self.words(*words), env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def words(self, *words: str) -> list[str]:
        return [str(self._python), str(self._python.with_name("loom")), *words]

    @property
    def mark(self) -> Path:
        return self.traced / "mark"

    @contextlib.contextmanager
    def tracing(self, path: str) -> Iterator[None]:
        """Note what is called meanwhile as a part of a path."""
        if path != "metric":  # there the rank itself sets it, when it logs
            self.set_mark(self.number_of(path))
        try:
            yield
        finally:
            self.set_mark(0)

    def number_of(self, path: str) -> int:
        """Return the mark of a path, another one in each run: processes live through several."""
        return self._number * len(PATHS) + PATHS.index(path) + 1

    def set_mark(self, number: int) -> None:
        """Change the byte in place: all processes have the file in their memory."""
        with self.mark.open("r+b") as file:
            file.write(bytes([number]))

    def _collected(self) -> Traced:
        found: dict[str, dict[str, dict[str, None]]] = {path: defaultdict(dict) for path in PATHS}
        for each in self.traced.glob("[0-9]*"):
            lines = [line.split("\t") for line in each.read_text().splitlines()]
            for number, file, _, shown in lines:
                path = PATHS[(int(number) - 1) % len(PATHS)]
                found[path][f"{_role(shown)} {each.name}"][file] = None
            each.unlink()
        return {
            path: {process: list(files) for process, files in those.items()}
            for path, those in found.items()
        }

    def close(self) -> None:
        """End the plane, the zygote and whatever else is left of it."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.loom("down")
        for pid in processes_with(f"XDG_RUNTIME_DIR={self.folder / 'run'}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class _Job:
    """A training of some ranks, which write down what they do."""

    def __init__(self, stage: Stage, out: Path) -> None:
        self._stage, self._out = stage, out
        self._command: subprocess.Popen[bytes] | None = None
        self.id = ""

    def run(self) -> None:
        """Start it; its first line ends the path."""
        own = {f"PATHS_{each.upper()}": self._stage.number_of(each) for each in ("run", "metric")}
        variables = {"PATHS_OUT": self._out, "PATHS_MARK": self._stage.mark, **own}
        words = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        program = str(shutil.copy(HERE / "paths_train.py", self._stage.folder / "work"))
        with self._stage.tracing("run"):
            self._command = self._stage.begin("run", "-n", str(RANKS), *words, program)
            _until(lambda: self._stage.mark.read_bytes() == b"\0", self._command)
        _until(lambda: all(self._steps(rank) > 3 for rank in range(RANKS)), self._command)
        self.id = json.loads(self._stage.loom("ls", "--json"))[0]["id"]
        if any(rank["warmth"] != "warm" for rank in self._record()["ranks"]):
            raise RuntimeError(f"the ranks were not forked by a zygote: {self._record()['ranks']}")
        _until(self._is_watched)

    def idle(self) -> None:
        """Let it train for a while."""
        with self._stage.tracing("idle"):
            steps = self._steps(0)
            _until(lambda: self._steps(0) > steps + IDLE)

    def set(self) -> None:
        """Change a knob; the ranks' own files must have it."""
        with self._stage.tracing("set"):
            self._stage.loom("set", self.id, "lr=0.02")
        _until(lambda: all(self._last(rank)[2] == 0.02 for rank in range(RANKS)))

    def metric(self) -> None:
        """Have rank 0 log a value, which sets the mark; ask for the series until it is there."""
        status = json.loads(self._stage.loom("up", "--status", "--json"))
        with self._stage.tracing("metric"):
            (self._out / "ask").touch()
            _until(lambda: self._stage.mark.read_bytes() != b"\0")
            _until(lambda: self._has_probe(status))

    def kill(self) -> None:
        """Kill rank 1; another process takes its place and both train on, the other as it was."""
        (survivor, _, _), (victim, _, _) = self._last(0), self._last(1)
        with self._stage.tracing("kill"):
            os.kill(victim, signal.SIGKILL)
            _until(lambda: self._last(1)[0] != victim)
            step = self._last(1)[1]
            _until(lambda: all(self._last(rank)[1] > step for rank in range(RANKS)))
        if self._last(0)[0] != survivor:
            raise RuntimeError("the rank that was not killed is another process: no live recovery")

    def end(self) -> None:
        """Let the training end by itself, and stop it if it does not."""
        (self._out / "end").touch()
        if self._command is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command.wait(LIMIT / 4)
        if self.id and self._command is not None and self._command.poll() is None:
            self._stage.loom("stop", "--now", "-y", self.id)
            self._command.wait(LIMIT)

    def _lines(self, rank: int) -> list[list[Any]]:
        path = self._out / f"rank-{rank}"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _steps(self, rank: int) -> int:
        return len(self._lines(rank))

    def _last(self, rank: int) -> tuple[int, int, float]:
        pid, step, rate = self._lines(rank)[-1]
        return pid, step, rate

    @property
    def _folder(self) -> Path:
        return self._stage.folder / "loom" / "runs" / self.id

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self._folder / "status.json").read_text())
        return record

    def _is_watched(self) -> bool:
        """Tell whether the weaver recovers it live by now."""
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return any(each["event"] == "watched" and each["is_live"] for each in events)

    def _has_probe(self, status: dict[str, Any]) -> bool:
        url = f"{status['url']}/api/jobs/{self.id}/metrics?name=probe"
        token = Path(status["token_file"]).read_text().strip()
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return any(each["last"] for each in json.load(answer)["series"])


def _environment(folder: Path, source: Path) -> tuple[Path, Path]:
    """Make an environment with what this one has; its interpreters trace themselves."""
    words = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(words, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (own,) = Path(sys.prefix).glob("lib/python*/site-packages")
    for each in own.iterdir():
        if not (each.name.startswith("__editable__") or each.name.endswith("torchloom.pth")):
            (packages / each.name).symlink_to(each)
    traced = packages / "traced"
    traced.mkdir()
    (traced / "mark").write_bytes(b"\0")
    (traced / "source").write_text(str(source / "torchloom"))
    shutil.copy(HERE / "tracer.py", packages / "tracer.py")
    (packages / "a_tracer.pth").write_text(f"{source}\nimport tracer\n")
    for name in ("nats-server", "py-spy"):
        if (there := Path(sys.prefix, "bin", name)).exists():
            (folder / "bin" / name).symlink_to(there)
    script = "import sys\nfrom torchloom.cli.main import run\nsys.exit(run())\n"
    (folder / "bin" / "loom").write_text(script)
    return folder / "bin" / "python", traced


def _role(shown: str) -> str:
    """Return what a process is, by its command line."""
    return next((role for part, role in ROLES.items() if part in shown), "other")


def _until(happened: Callable[[], object], alive: "subprocess.Popen[bytes] | None" = None) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > deadline or (alive is not None and alive.poll() is not None):
            raise RuntimeError("what was waited for did not happen")
        time.sleep(0.01)


def _commit(source: Path) -> str:
    words = ["git", "-C", str(source), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _text(facts: dict[str, Any]) -> str:
    """Return it as JSON with a list of files a line."""
    text = json.dumps(facts, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
