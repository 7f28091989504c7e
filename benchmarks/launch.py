"""The launcher: from the command to a training step, from a kill to the next, what ranks weigh.

The same program (ddp.py) under `loom launch` and torchrun, on one host. Ranks write the times of
their steps into files; all else is read from outside: the clock, exit codes, /proc.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.cli import run, version
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject

SAMPLES = 50
FEW = 10  # samples of what takes seconds
RANKS, IDLE_RANKS = 4, 8
LOOKS = 4  # at the memory of one start
PROGRAM = Path(__file__).with_name("ddp.py")
LIMIT = 120.0  # seconds; a launch that takes longer hangs
LOOK = 0.02  # seconds; ranks write down their times, and who looks too often takes theirs
LEAVE = "from torchloom.launch.keeper import zygote_client as warm; warm.leave_all()"
NOT_A_USERS = ("LOOM_WARM", "LOOM_WARM_IDLE", "LOOM_JOB", "LOOM_AGENT_OF", "OMP_NUM_THREADS")


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of the launcher."""
    lab.at_end.callback(end_zygotes, lab)
    loom, torchrun = Launcher.loom(lab), Launcher.torchrun(lab)
    warm, cold = first_step(loom, SAMPLES), first_step(Launcher.loom(lab, is_cold=True))
    bare = first_step(torchrun)
    killed = kill_to_step(loom)
    bare_killed = kill_to_step(Launcher.torchrun(lab, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    idle, idle_and_launcher = idle_memory(loom)
    bare_idle, bare_idle_and_launcher = idle_memory(torchrun)
    to_step, memory = (
        f"ms to the first step of {RANKS} ranks",
        f"MB of PSS, {IDLE_RANKS} idle ranks",
    )
    return [
        Figure("first-step-warm", f"{to_step}, warm against cold", warm, bare),
        Figure("first-step-slowest", f"{to_step}, warm", warm),
        Figure("first-step-cold", f"{to_step}, both cold", cold, bare),
        Figure("kill-to-step", "ms from SIGKILL to the next first step", killed, bare_killed),
        Figure("idle-pss", memory, idle, bare_idle),
        Figure(
            "idle-pss-launcher", f"{memory} and launcher", idle_and_launcher, bare_idle_and_launcher
        ),
    ]


def first_step(launcher: "Launcher", most: int = FEW) -> Subject:
    """From the start of the command to the last rank's first optimizer step, in milliseconds."""

    def sample() -> float:
        with launcher.start(RANKS, "leave") as started:
            started.end_well()
            return (started.last_first_step(0) - started.began) / 1e6

    return launcher.subject(f"{RANKS} ddp.py", sample, most)


def kill_to_step(launcher: "Launcher") -> Subject:
    """From the SIGKILL of rank 1 to the last rank's first step of the next attempt."""

    def sample() -> float:
        with launcher.start(RANKS, "train", "--max-restarts", "1") as started:
            started.until(lambda: len(started.steps(1)) >= 3)
            killed = time.time_ns()
            os.kill(started.steps(1)[0].pid, signal.SIGKILL)
            started.end_well()
            return (started.last_first_step(1) - killed) / 1e6

    return launcher.subject(f"{RANKS} --max-restarts 1 ddp.py", sample)


def idle_memory(launcher: "Launcher") -> tuple[Subject, Subject]:
    """What ranks weigh that sleep after their first step: alone, and with all that serves them."""

    alone: deque[float] = deque()
    together: deque[float] = deque()

    def look() -> None:
        with launcher.start(IDLE_RANKS, "idle") as started:
            started.until(started.has_stepped)
            ranks = {started.steps(rank)[0].pid for rank in range(IDLE_RANKS)}
            served_by = {started.process.pid} | ancestors(ranks) | servants(ranks)
            for _ in range(LOOKS):
                alone.append(memory(ranks))
                together.append(memory(ranks | served_by))

    def sample(values: deque[float]) -> float:
        if not values:
            look()
        return values.popleft()

    words = f"{IDLE_RANKS} ddp.py"
    return (
        launcher.subject(words, lambda: sample(alone)),
        launcher.subject(words, lambda: sample(together)),
    )


@dataclass
class Launcher:
    """A way to start ranks: its words up to how many, its variables, whether it may be warm."""

    lab: Lab
    program: Path
    words: tuple[str, ...]
    version: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    is_warm: bool = False
    is_cold: bool = False
    starts: int = 0

    @classmethod
    def loom(cls, lab: Lab, is_cold: bool = False) -> "Launcher":
        """Return ours: warm from the second start on; as cold, each is the first of a new user."""
        words = ("launch", "-n")
        return cls(lab, lab.ours / "loom", words, is_warm=not is_cold, is_cold=is_cold)

    @classmethod
    def torchrun(cls, lab: Lab, **env: str) -> "Launcher":
        """Return the peer."""
        words = ("--standalone", "--nproc_per_node")
        return cls(lab, lab.peers / "torchrun", words, version(lab, "torch"), env)

    def subject(self, words: str, sample: Callable[[], float], most: int = FEW) -> Subject:
        """Return what is sampled, with the command as a person would type it."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        command = " ".join([*variables, self.program.name, *self.words, words])
        return Subject(command, sample, self.program.name, self.version, most)

    @contextlib.contextmanager
    def start(
        self, ranks: int, then: str, *options: str, script: Path = PROGRAM
    ) -> Iterator["Started"]:
        """Start a program in a folder of its own; at the end nothing of it runs."""
        if not self.program.exists():
            raise CannotMeasure(f"{self.program} is not there; `make bench` installs the peers")
        folder = self.lab.scratch / f"start-{time.time_ns()}"
        folder.mkdir()
        command = [str(self.program), *self.words, str(ranks), *options, str(script), ".", then]
        env = {**user(self.lab), **self.env}
        if self.is_cold:
            env |= state(folder)
        with (folder / "output").open("wb") as output:
            began = time.time_ns()
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield Started(process, folder, ranks, began)
        finally:
            end(process)
            if self.is_cold:
                end_zygotes(self.lab, folder)
        self.starts += 1
        if self.is_warm and self.starts > 1:
            must_be_warm(self.lab.scratch)


class Step(NamedTuple):
    """One line of a rank's file."""

    attempt: int
    number: int
    pid: int
    time_ns: int


@dataclass(frozen=True)
class Started:
    """A launcher that was started, and what its ranks have written."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    ranks: int
    began: int

    def steps(self, rank: int) -> list[Step]:
        """Return the finished steps of a rank."""
        path = self.folder / str(rank)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [Step(*map(int, line.split())) for line in lines if line.endswith("\n")]

    def has_stepped(self) -> bool:
        """Tell whether every rank has finished a step."""
        return all(self.steps(rank) for rank in range(self.ranks))

    def last_first_step(self, attempt: int) -> int:
        """Return when the last rank had made its first step of an attempt."""
        every = [self.steps(rank) for rank in range(self.ranks)]
        times = [s.time_ns for steps in every for s in steps if s[:2] == (attempt, 1)]
        if len(times) != self.ranks:
            raise CannotMeasure(f"{len(times)} of {self.ranks} ranks stepped: {self.last_words()}")
        return max(times)

    def until(self, condition: Callable[[], bool]) -> None:
        """Come back when the condition holds."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CannotMeasure(f"{self.process.args!r} got nowhere: {self.last_words()}")
            time.sleep(LOOK)

    def end_well(self) -> None:
        """Wait for the launcher; anything but success makes a sample worthless."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise CannotMeasure(
                f"{self.process.args!r} does not end: {self.last_words()}"
            ) from None
        if code:
            raise CannotMeasure(f"{self.process.args!r} ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of what launcher and ranks have printed."""
        return (self.folder / "output").read_text(errors="replace")[-300:]


def must_be_warm(home: Path) -> None:
    """See that the last run was what its figure says; its record tells for every rank."""
    newest = max(home.glob("home/runs/*/status.json"), key=lambda path: path.stat().st_mtime_ns)
    said = {rank["warmth"] for rank in json.loads(newest.read_text())["ranks"]}
    if said != {"warm"}:
        raise CannotMeasure(f"the run was not warm: {said}")


# Whose memory it is.


def memory(pids: set[int]) -> float:
    """Return the sum of the processes' proportional set sizes, in megabytes."""
    try:
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    except OSError as error:
        raise CannotMeasure(f"the kernel does not tell the memory of {error.filename}") from error
    lines = [line.split() for text in texts for line in text.splitlines()]
    return sum(int(words[1]) for words in lines if words[0] == "Pss:") / 1024


def ancestors(pids: set[int]) -> set[int]:
    """Return the parents of processes, and theirs: torchrun; keeper and zygote."""
    parents = {
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids
    }
    parents -= {1, os.getpid()}
    return parents | ancestors(parents) if parents else set()


def servants(ranks: set[int]) -> set[int]:
    """Return what runs for a job of ours beside its ranks: guard, launch process, agent, keeper."""
    names = {word[9:] for pid in ranks for word in environ(pid) if word.startswith(b"LOOM_JOB=")}
    marks = {b"LOOM_AGENT_OF=" + name for name in names}
    return {pid for pid in processes() if marks & environ(pid)}


def processes() -> list[int]:
    """Return the processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environ(pid: int, what: str = "environ") -> set[bytes]:
    """Return the variables (or the words of the command line) of a process; of one gone, none."""
    try:
        return set(Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0"))
    except OSError:
        return set()


# A state of its own, and nothing left behind.


def user(lab: Lab) -> dict[str, str]:
    """Return the environment of a user who has just installed it all."""
    mine = {name: value for name, value in lab.env.items() if name not in NOT_A_USERS}
    return mine | state(lab.scratch)


def state(folder: Path) -> dict[str, str]:
    """Return the variables that put all state below a folder."""
    (folder / "run").mkdir(exist_ok=True)
    return {"LOOM_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a launcher, which ends its ranks."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)


def end_zygotes(lab: Lab, folder: Path | None = None) -> None:
    """Ask zygotes and plane that live below a folder to go, and come back when they have."""
    home = folder or lab.scratch
    run(lab.ours / "python", "-c", LEAVE, env=user(lab) | state(home))
    run(lab.ours / "loom", "down", env=user(lab) | state(home))
    socket = os.fsencode(home / "run")
    deadline = time.monotonic() + 10
    while left := [
        p for p in processes() if any(w.startswith(socket) for w in environ(p, "cmdline"))
    ]:
        if time.monotonic() > deadline:
            raise CannotMeasure(f"zygotes or plane did not leave: {left}")
        time.sleep(0.01)
