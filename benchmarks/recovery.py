"""Live recovery: how soon a death is known, how soon all ranks train again, what that costs.

The same program (recovery_trained.py) under `loom launch`, torchrun and torchft, on
one host. Ranks write the times of their steps into files, and the killer reads the same clock.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from benchmarks import planes, recovery_link, recovery_torchft
from benchmarks.cli import version
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, asked, once, series
from benchmarks.launch import LIMIT, RANKS, Launcher, Started, Step, end_zygotes, kill_to_step, user

SAMPLES = 10
KILLS = 20  # of ours, for each sample of the others: a p99 takes 200
WINDOWS = 4  # of goodput
EVERY = 15.0  # seconds from failure to failure
RESTARTS = 20  # of the weaver
AWHILE = 1.0  # seconds in which a weaver that is up hears of all
SIZE = 400 * 10**6  # bytes of state
TRAINED = Path(__file__).with_name("recovery_trained.py")
MOVED = "benchmarks.recovery_moved"
SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # without it torchrun recovers every other time


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of recovery."""
    lab.at_end.callback(end_zygotes, lab)
    plane = once(lambda: lab.at_end.enter_context(planes.up(lab)))
    deaths = once(lambda: killed(lab, plane(), KILLS * lab.n))
    words = f"loom launch -n {RANKS} {TRAINED.name}"
    known = series(words, lambda: [one.known for one in deaths()])
    back = series(words, lambda: [one.back for one in deaths()])
    torchrun = kill_to_step(Launcher.torchrun(lab, **{SHARED_STORE: "1"}))
    to_step = f"ms from SIGKILL to all of {RANKS} ranks past the next step"
    return [
        Figure("known", "ms from SIGKILL to the weaver's word of it", known),
        Figure("kill-to-step", to_step, back),
        Figure("kill-to-step-slowest", to_step, back),
        Figure("kill-to-step-torchrun", to_step, back, torchrun),
        Figure(
            "kill-to-step-torchft",
            f"{to_step}; torchft: of its survivors",
            back,
            recovery_torchft.subject(lab),
        ),
        *moved(lab),
        goodput(lab, plane),
        weaver_restarts(lab, plane),
    ]


# Who trains, and what is read of it.


def ours(lab: Lab) -> Launcher:
    return Launcher(lab, lab.ours / "loom", ("launch", "-n"))


@contextlib.contextmanager
def training(lab: Lab) -> Iterator[Started]:
    """Have ranks train whose losses the weaver deals with."""
    with ours(lab).start(RANKS, "loom", script=TRAINED) as started:
        runs = lab.scratch / "home" / "runs"
        started.until(started.has_stepped)
        newest = max(runs.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        started.until(lambda: '"watched"' in newest.read_text())
        yield started


def newest(started: Started, rank: int, size: int = 4000) -> list[Step]:
    """Return the last steps of a rank, without reading all that it wrote."""
    with (started.folder / str(rank)).open("rb") as file:
        begin = file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        lines = file.read().split(b"\n")[:-1]
    return [Step(*map(int, line.split())) for line in lines[1 if begin else 0 :]]


def kill(started: Started, rank: int) -> int:
    """Kill a rank; return when. One that is not back from the last time is dead already."""
    pid = newest(started, rank)[-1].pid
    now = time.time_ns()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return now


# From a death to the next step.


@dataclass(frozen=True)
class Death:
    """When a rank was killed, when the weaver knew, when all had done a step again; in ms."""

    at: int
    known: float
    back: float


def killed(lab: Lab, plane: planes.Plane, count: int) -> list[Death]:
    """Kill one rank after the other, and see when the last has done the newcomer's first step."""
    chance, found = random.Random(0), list[tuple[int, float]]()
    with training(lab) as started:
        job = job_of(started)
        for _ in range(count):
            time.sleep(chance.uniform(0.05, 0.2))
            victim = chance.randrange(RANKS)
            before = newest(started, victim)[-1].pid
            at = kill(started, victim)
            back = partial(back_at, started, victim, before, at)
            started.until(lambda back=back: back() > 0)
            found.append((at, (back() - at) / 1e6))
            if newest(started, 0)[-1].attempt:
                raise CannotMeasure("a death became a restart")
        told = plane.ask("events", job=job, kinds=["regrouping"], limit=10000)["items"]
    words = sorted(stamp(one["time"]) for one in told if one["kind"] == "regrouping")
    return [
        Death(at, next((t - at / 1e6 for t in words if t > at / 1e6), 1e9), b) for at, b in found
    ]


def back_at(started: Started, victim: int, before: int, at: int) -> int:
    """Return when the last rank had done the first step of the newcomer, or a later one; else 0."""
    every = [[s for s in newest(started, rank) if s.time_ns > at] for rank in range(RANKS)]
    first = min((s.number for s in every[victim] if s.pid != before), default=None)
    if first is None:
        return 0
    times = [min((s.time_ns for s in one if s.number >= first), default=0) for one in every]
    return max(times) if all(times) else 0


def job_of(started: Started) -> str:
    """Return the job of a rank, by its environment."""
    words = Path(f"/proc/{newest(started, 0)[-1].pid}/environ").read_bytes().split(b"\0")
    return next(word[9:].decode() for word in words if word.startswith(b"LOOM_JOB="))


def stamp(told: str | float) -> float:
    """Return a time of the plane in milliseconds."""
    if isinstance(told, str):
        return datetime.fromisoformat(told).timestamp() * 1000
    return told * 1000


# A peer's state.


def moved(lab: Lab) -> list[Figure]:
    """Return what it takes to get 400 MB from a peer, beside DCP and beside a plain stream."""
    near, far = Movers(lab, "near"), Movers(lab, "far")
    until = "ms until 400 MB are in a rank's tensors"
    there = f"{until}, from another host over a link"
    return [
        Figure("state-shm", until, near.peer, near.dcp),
        Figure("state-link", there, far.peer, far.dcp),
        Figure("state-link-plain", f"{there}; iperf's way: into one buffer", far.peer, far.plain),
    ]


class Movers:
    """Two ranks that have a state moved from one to the other, on one host or on two."""

    def __init__(self, lab: Lab, where: str) -> None:
        @once
        def mover() -> "subprocess.Popen[str]":
            if where == "far" and (why := recovery_link.can_be()):
                raise CannotMeasure(why)
            return lab.at_end.enter_context(moving(lab, where))

        def subject(what: str, command: str, name: str, number: str = "") -> Subject:
            return Subject(command, lambda: asked(mover(), what, "the mover ended"), name, number)

        load, torch = "dcp.load(state, checkpoint_id=path, no_dist=True)", installed("torch")
        self.peer = subject("peer", "a newcomer takes a peer's state", "loom")
        self.dcp = subject("dcp", load, "torch", torch)
        self.plain = subject("plain", "recv into 128 kB, again and again", "tcp")


@contextlib.contextmanager
def moving(lab: Lab, where: str) -> Iterator["subprocess.Popen[str]"]:
    folder = Path(tempfile.mkdtemp(dir=lab.scratch))
    words = [str(lab.ours / "python"), "-m", MOVED, str(folder), str(SIZE), where]
    here, pipe = Path(__file__).parents[1], subprocess.PIPE
    with subprocess.Popen(
        words, cwd=here, env=user(lab), stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            shutil.rmtree(f"/dev/shm/loom-bench-{folder.name}", ignore_errors=True)


# What it costs over a longer time.


def goodput(lab: Lab, plane: Callable[[], planes.Plane]) -> Figure:
    """Return which share of the time steps took that count, with a failure every 15 s."""

    def mine() -> Sequence[float]:
        plane()
        with training(lab) as started:
            return windows(started)

    def theirs() -> Sequence[float]:
        launcher = Launcher.torchrun(lab, **{SHARED_STORE: "1"})
        options = ("--max-restarts", str(10 * WINDOWS))
        with launcher.start(RANKS, "torch", *options, script=TRAINED) as started:
            started.until(started.has_stepped)
            return windows(started)

    words = f"{SHARED_STORE}=1 torchrun --standalone --nproc_per_node {RANKS} {TRAINED.name}"
    return Figure(
        "goodput",
        f"% of the steps of {EVERY:.0f} s that are done with a kill in them",
        series("loom launch", mine),
        replace(series(words, theirs, "torchrun"), version=version(lab, "torch")),
    )


def windows(started: Started) -> list[float]:
    """Kill a rank every 15 s; return which share of an undisturbed time's steps was still done.

    Before each time with a kill is one without, for a step takes now more, now less.
    """
    time.sleep(3.0)
    found = list[float]()
    for number in range(WINDOWS):
        quiet = done_in(started, EVERY)
        kill(started, number % RANKS)
        found.append(100 * done_in(started, EVERY) / quiet)
    return found


def done_in(started: Started, seconds: float) -> int:
    """Return how many steps all ranks do in this time; those that are repeated count once."""
    before = reached(started)
    time.sleep(seconds)
    return reached(started) - before


def reached(started: Started) -> int:
    """Return the step that all ranks have done."""
    return min(newest(started, rank)[-1].number for rank in range(RANKS))


def weaver_restarts(lab: Lab, plane: Callable[[], planes.Plane]) -> Figure:
    """Return the slowest step of times with a restart of the weaver, beside such without."""

    @once
    def both() -> tuple[list[float], list[float]]:
        found: tuple[list[float], list[float]] = ([], [])
        with training(lab) as started:
            for _ in range(RESTARTS):
                began = time.time_ns()
                restart_weaver(plane())
                found[0].append(slowest(started, began))
                ended = time.time_ns()
                time.sleep((ended - began) / 1e9)
                found[1].append(slowest(started, ended))
        return found

    return Figure(
        "weaver-restarts",
        "ms of the slowest step in a time with a restart of the weaver, and in one without",
        series("kill -9 WEAVER", lambda: both()[0]),
        series("nothing", lambda: both()[1]),
    )


def restart_weaver(plane: planes.Plane) -> None:
    """Kill the weaver; come back when another one is up, and some time more."""
    before = plane.pid("weaver")
    os.kill(before, signal.SIGKILL)
    deadline, after = time.monotonic() + LIMIT, before
    while after == before and time.monotonic() < deadline:
        time.sleep(0.05)
        with contextlib.suppress(CannotMeasure):
            after = plane.pid("weaver")
    time.sleep(AWHILE)


def slowest(started: Started, began: int) -> float:
    """Return the longest time between two steps of a rank, from a moment on, in ms."""
    times = [[s.time_ns for s in newest(started, r, 20_000)] for r in range(RANKS)]
    return max((b - a) / 1e6 for rank in times for a, b in itertools.pairwise(rank) if b > began)
