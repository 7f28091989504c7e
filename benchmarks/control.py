"""Being watched and steered: what a step pays for it, and how soon a change is everywhere.

A user's own plane (`loom up`), real ranks under `loom launch`. Costs are processor time, taken in
the ranks; changes are asked for at the weaver's door and timed there; what the ranks did, and when,
is read from files of their own. `log` is measured beside wandb and mlflow, call by call.
"""

import contextlib
import json
import math
import random
import statistics
import subprocess
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks import planes
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, asked, once, series
from benchmarks.launch import end_zygotes
from benchmarks.planes import Plane, cpu

from torchloom.errors import LoomError

SAMPLES = 15
CHANGES = 220
STEP = 0.005  # seconds; what control_steps.py paces itself to
AHEAD = 0.010  # seconds that the design gives an answer: K steps are as many as fit it
WARM_UP, QUIET = 2.0, 12.0  # seconds of training before anything, and without any command
LIMIT = 120.0
HERE = Path(__file__).parent


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of live control."""
    lab.at_end.callback(end_zygotes, lab)
    running = once(lambda: lab.at_end.enter_context(planes.up(lab)))
    idle = once(lambda: idle_steps(lab, running()))
    steered = {ranks: once(partial(steer, lab, running, ranks)) for ranks in (2, 4, 8)}

    def of(ranks: int, name: str) -> Callable[[], list[float]]:
        return lambda: getattr(steered[ranks](), name)

    def knob(ranks: int) -> Subject:
        return series(f"set lr, {ranks} ranks", of(ranks, "late"))

    def slowest(ranks: int) -> tuple[Subject, Subject]:
        calm = series("the same ranks, between two commands", of(ranks, "calm"), "no command")
        return series(f"set lr, {ranks} ranks", of(ranks, "slowest")), calm

    log = logger(lab, "loom", 2000, running)
    peers = {which: logger(lab, which, count) for which, count in CALLS.items()}
    late, share = "ms beyond K+2 steps, request to last ack", f"% of a step of {STEP * 1e3:.0f} ms"
    worst = "medians, the slowest step during a command"
    return [
        Figure("idle-attached", "µs a step", series("optimizer hooks", lambda: idle()["attached"])),
        Figure("observed", "µs a step", series("a plain loop", lambda: idle()["observed"])),
        Figure("idle-api", "µs a step", series("run.steps", lambda: idle()["api"])),
        Figure("log", "µs, five numbers, p50", log),
        Figure("log-wandb", "µs, five numbers, p50", log, peers["wandb"]),
        Figure("log-mlflow", "µs, five numbers, p50", log, peers["mlflow"]),
        Figure("log-mlflow-async", "µs, five numbers, p50", log, peers["mlflow-async"]),
        Figure("overhead", f"{share}, thread, hooks and log", series("4 ranks", of(4, "cost"))),
        Figure("overhead-agent", f"{share}, the node's agent", series("4 ranks", of(4, "agent"))),
        Figure("knob-2", late, knob(2)),
        Figure("knob-4", late, knob(4)),
        Figure("knob-8", late, knob(8)),
        Figure("slowest-step-2", worst, *slowest(2)),
        Figure("slowest-step-4", worst, *slowest(4)),
    ]


# What a call of `log` costs.

CALLS = {"wandb": 300, "mlflow": 15, "mlflow-async": 100}
COMMANDS = {
    "loom": "run.log(values)",
    "wandb": "run.log(values, step=step), offline",
    "mlflow": "mlflow.log_metrics(values, step=step) on SQLite",
    "mlflow-async": "mlflow.log_metrics(values, step=step, synchronous=False) on SQLite",
}


def logger(lab: Lab, which: str, count: int, running: Callable[[], Plane] | None = None) -> Subject:
    """Return what logs in a process of its own, asked for so many calls at a time."""
    home = lab.ours if running else lab.peers.parent.with_name("trackers") / "bin"

    @once
    def process() -> "subprocess.Popen[str]":
        env = {**lab.env, **(running().rank("bench-log") if running else {})}
        return lab.at_end.enter_context(serving(home, which, lab.scratch, env))

    def sample() -> float:
        excuse = f"{which} does not answer; `make bench T=control` installs it"
        return asked(process(), str(count), excuse)

    name = which.partition("-")[0]
    return Subject(COMMANDS[which], sample, name, version(home, name) if not running else "")


@contextlib.contextmanager
def serving(
    home: Path, which: str, folder: Path, env: dict[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that logs when asked; it is gone at the end."""
    words = [str(home / "python"), str(HERE / "control_log.py"), which, str(folder)]
    if not (home / "python").exists():
        raise CannotMeasure(f"{home} is not there; `make bench T=control` installs the peers")
    with subprocess.Popen(
        words, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise CannotMeasure(f"{which} cannot be set up; see above")
            yield process
        finally:
            process.kill()


def version(home: Path, package: str) -> str:
    """Return the version of a peer, or nothing when it is not installed."""
    found = sorted(home.parent.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else ""


# What real ranks tell.


def idle_steps(lab: Lab, running: Plane) -> dict[str, list[float]]:
    """Return what a threadlet that nobody commands adds to a step."""
    found = lab.scratch / "idle.json"
    with launched(lab, running, 1, "control_idle.py", found) as process:
        if process.wait(LIMIT) or not found.exists():
            raise CannotMeasure(f"the idle loop failed: {last_words(found)}")
    told: dict[str, list[float]] = json.loads(found.read_text())
    return told


@dataclass
class Steered:
    """What one run showed."""

    late: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    agent: list[float] = field(default_factory=list)


def steer(lab: Lab, plane_up: Callable[[], Plane], ranks: int) -> Steered:
    """Train, stay quiet, change the learning rate many times; read what the ranks wrote."""
    running = plane_up()
    folder = lab.scratch / f"steered-{ranks}"
    folder.mkdir()
    with launched(lab, running, ranks, "control_steps.py", folder) as process:
        job = until_steerable(running, ranks, process, folder)
        time.sleep(WARM_UP)
        agent = agent_share(running, ranks) if ranks == 4 else []
        calm_until = time.monotonic_ns()
        changes = list(change(running, job))
        (folder / "end").touch()
        if process.wait(LIMIT):
            raise CannotMeasure(f"the ranks failed: {last_words(folder)}")
    files = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(ranks)]
    must_agree(files, changes)
    seen = judged([file["began"] for file in files], changes)
    windows = int(QUIET / STEP / 200)
    until = bisect_left(files[0]["began"], calm_until) // 200
    seen.cost = [
        100 * cost / 1e9 / STEP
        for f in files
        for cost in f["cost"][max(1, until - windows) : until]
    ]
    seen.agent = agent
    return seen


@dataclass(frozen=True)
class Change:
    """One change of the learning rate: when it was asked for and when all had acted."""

    asked: int
    done: int
    value: float


def change(running: Plane, job: str) -> Iterator[Change]:
    """Ask for one value after the other, each at a random moment of a step."""
    caller = running.caller()
    for number in range(CHANGES):
        time.sleep(random.uniform(0.02, 0.04))
        value = 0.001 * (number + 1)
        asked = time.monotonic_ns()
        try:
            caller.ask("set", job=job, values={"lr": value}, hold=True)
        except LoomError as error:
            raise CannotMeasure(f"lr={value} was not taken: {error}") from error
        yield Change(asked, time.monotonic_ns(), value)
    caller.close()


def judged(began: Sequence[Sequence[int]], changes: Sequence[Change]) -> Steered:
    """Return how late each change was done, and the slowest steps in it and before it."""
    step = statistics.median(b - a for times in began for a, b in pairwise(times))
    ahead = max(1, math.ceil(AHEAD * 1e9 / step - 0.05))  # as the ranks count them
    seen = Steered()
    calm_since = changes[0].asked - int(0.03e9)
    for each in changes:
        seen.late.append((each.done - each.asked - (ahead + 2) * step) / 1e6)
        seen.slowest.append(slowest(began, each.asked, each.done) / step)
        if calm := slowest_within(began, calm_since, each.asked):
            seen.calm.append(calm / step)
        calm_since = each.done
    return seen


def slowest(began: Sequence[Sequence[int]], start: int, end: int) -> int:
    """Return how long the slowest step took, of any rank, that lay in this time or touched it."""
    longest = 0
    for times in began:
        touched = times[max(0, bisect_right(times, start) - 1) : bisect_left(times, end) + 1]
        longest = max(longest, *(b - a for a, b in pairwise(touched)), 0)
    return longest


def slowest_within(began: Sequence[Sequence[int]], start: int, end: int) -> int:
    """Return the same of the steps that lie in this time whole: nothing of a command is in them."""
    longest = 0
    for times in began:
        inside = times[bisect_left(times, start) : bisect_right(times, end)]
        longest = max(longest, *(b - a for a, b in pairwise(inside)), 0)
    return longest


def must_agree(files: Sequence[dict[str, list[float]]], changes: Sequence[Change]) -> None:
    """See in the ranks' files that every value was used, in order, from the same step on."""
    turns = [
        [(step, b) for step, (a, b) in enumerate(pairwise(file["used"]), 1) if a != b]
        for file in files
    ]
    if any(each != turns[0] for each in turns):
        raise CannotMeasure("the ranks did not change at the same steps")
    if [value for _, value in turns[0]] != [each.value for each in changes]:
        raise CannotMeasure(f"{len(turns[0])} changes were used of {len(changes)} that were acked")


def agent_share(running: Plane, ranks: int) -> list[float]:
    """Return what the node's agent spends for a rank's step, in percent of it, by the second."""
    pid, shares = running.pid("agent"), []
    for _ in range(int(QUIET)):
        began, before = time.monotonic(), cpu(pid)
        time.sleep(1.0)
        shares.append(100 * (cpu(pid) - before) / (time.monotonic() - began) / ranks)
    return shares


def until_steerable(
    running: Plane, ranks: int, process: "subprocess.Popen[bytes]", folder: Path
) -> str:
    """Come back with the job's id when all its ranks have said that lr can be changed."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        for job in running.ask("jobs", active=True):
            there = [each for each in running.ask("ranks", job=job["id"]) if each["step"]]
            if len(there) == ranks and running.ask("knobs", job=job["id"]):
                return str(job["id"])
        time.sleep(0.1)
    raise CannotMeasure(f"the ranks cannot be steered: {last_words(folder)}")


@contextlib.contextmanager
def launched(
    lab: Lab, running: Plane, ranks: int, program: str, argument: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program of ours under `loom launch`; nothing of it is left at the end."""
    words = [str(lab.ours / "loom"), "launch", "-n", str(ranks), str(HERE / program), str(argument)]
    with argument.with_suffix(".output").open("wb") as output:
        process = subprocess.Popen(
            words,
            env=running.env,
            cwd=lab.scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def last_words(argument: Path) -> str:
    """Return the end of what a launched program has printed."""
    return argument.with_suffix(".output").read_text(errors="replace")[-300:]
