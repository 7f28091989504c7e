"""Programs whose loop is a trainer's: what observing them costs, how soon they start and recover.

The same small training (programs_trained.py) by the Hugging Face `Trainer`, Lightning and
Accelerate, with two ranks under `loom launch`. Ranks write times into files; kills come from here.
"""

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import planes
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, once
from benchmarks.launch import Launcher, Started, end_zygotes

SAMPLES = 12
RANKS = 2
BLOCK, WARM_UP = 20, 40  # steps
STARTS = 12  # at most, until a warm interpreter has learned what the program imports
TRAINED = Path(__file__).with_name("programs_trained.py")
WATCHED = '"watched"'  # in the record of a run: a loss is recovered live from now on
KINDS = {"huggingface": "Hugging Face", "lightning": "Lightning", "accelerate": "Accelerate"}


class Line(NamedTuple):
    """One line of a rank's file."""

    what: str
    pid: int
    time_ns: int
    spent_ns: int


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of programs with a trainer."""
    lab.at_end.callback(end_zygotes, lab)
    plane = once(lambda: lab.at_end.enter_context(planes.up(lab)))
    learned = {kind: once(partial(learn, lab, kind)) for kind in KINDS}

    def step(kind: str) -> Subject:
        return Subject(f"{KINDS[kind]}: LOOM_ATTACH=1 less LOOM_ATTACH=0", partial(cost, lab, kind))

    def begun(kind: str) -> Subject:
        return Subject(words(kind), partial(start, lab, learned[kind], kind))

    def killed(kind: str, what: str) -> Subject:
        return Subject(words(kind), partial(kill, lab, plane, learned[kind], kind, what))

    added, first = "µs of processor time a step", f"ms to the first step of {RANKS} ranks, warm"
    back = f"ms from SIGKILL to the newcomer's first step, {RANKS} ranks"
    less = f"{back}, less the script's set-up"
    return [
        Figure("step-huggingface", added, step("huggingface")),
        Figure("step-lightning", added, step("lightning")),
        Figure("step-accelerate", added, step("accelerate")),
        Figure("start-huggingface", first, begun("huggingface")),
        Figure("start-lightning", first, begun("lightning")),
        Figure("start-accelerate", first, begun("accelerate")),
        Figure("kill-huggingface", back, killed("huggingface", "kill")),
        Figure("kill-lightning", back, killed("lightning", "kill")),
        Figure("recover-huggingface", less, killed("huggingface", "recover")),
        Figure("recover-lightning", less, killed("lightning", "recover")),
    ]


def words(kind: str) -> str:
    """Return the command of a training."""
    return f"loom launch -n {RANKS} {TRAINED.name} . {kind}"


def lines(started: Started, rank: int) -> list[Line]:
    """Return what a rank has written."""
    path = started.folder / str(rank)
    whole = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = (line.split() for line in whole if line.endswith("\n"))
    return [Line(what, *map(int, rest)) for what, *rest in rows]


@contextlib.contextmanager
def training(lab: Lab, kind: str, steps: int, attach: str = "1") -> Iterator[Started]:
    """Have ranks train that many steps."""
    env = {"LOOM_ATTACH": attach, "STEPS": str(steps)}
    launcher = replace(Launcher.loom(lab), env=env, is_warm=False)
    with launcher.start(RANKS, kind, script=TRAINED) as started:
        yield started


# What it costs.


def cost(lab: Lab, kind: str) -> float:
    """Return the microseconds of the main thread that a step takes more when it is observed."""
    with_it, without = (a_step(lab, kind, attach) for attach in ("1", "0"))
    return with_it - without


def a_step(lab: Lab, kind: str, attach: str) -> float:
    """Return the microseconds of a step: the median over blocks of steps, mean over the ranks."""
    with training(lab, kind, 400, attach) as started:
        started.end_well()
        found = []
        for rank in range(RANKS):
            spent = [one.spent_ns for one in lines(started, rank) if one.what.isdecimal()]
            blocks = pairwise(spent[WARM_UP::BLOCK])
            found.append(statistics.median((b - a) / BLOCK / 1000 for a, b in blocks))
    return statistics.mean(found)


# How soon it starts.


def learn(lab: Lab, kind: str) -> None:
    """Start the program until a warm interpreter has what it imports."""
    for _ in range(STARTS):
        with training(lab, kind, 5) as started:
            started.end_well()
            output = (started.folder / "output").read_text()
        if "cold start" not in output:
            return
        time.sleep(1.0)  # the interpreter takes in what it has learned
    raise CannotMeasure("every start was cold")


def start(lab: Lab, learned: Callable[[], None], kind: str) -> float:
    """Return the milliseconds from the command to the last rank's first step."""
    learned()
    with training(lab, kind, 5) as started:
        started.end_well()
        ends = [first_step(lines(started, rank)).time_ns for rank in range(RANKS)]
        return (max(ends) - started.began) / 1e6


def first_step(of: list[Line]) -> Line:
    return next(one for one in of if one.what.isdecimal())


# How soon it trains again after a kill.


def kill(
    lab: Lab, plane: Callable[[], object], learned: Callable[[], None], kind: str, what: str
) -> float:
    """Return the milliseconds from a kill to the newcomer's first step; as `recover`, without
    those from the first line of the script until the training begins."""
    plane()
    learned()
    with training(lab, kind, 100_000) as started:
        started.until(lambda: all(has_stepped(started, rank) for rank in range(RANKS)))
        runs = lab.scratch / "home" / "runs"
        record = max(runs.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        started.until(lambda: WATCHED in record.read_text())
        killed, pid = time.time_ns(), lines(started, 1)[-1].pid
        os.kill(pid, signal.SIGKILL)
        started.until(lambda: has_stepped(started, 1, pid))
        newcomer = [one for one in lines(started, 1) if one.pid != pid]
        if len({one.pid for one in lines(started, 0)}) > 1:
            raise CannotMeasure("the kill became a restart")
    begun, ready = (next(one for one in newcomer if one.what == w) for w in ("first", "ready"))
    whole = first_step(newcomer).time_ns - killed
    return (whole - (ready.time_ns - begun.time_ns if what == "recover" else 0)) / 1e6


def has_stepped(started: Started, rank: int, but: int = 0) -> bool:
    """Tell whether a rank has finished a step, in another process than this one."""
    return any(one.what.isdecimal() and one.pid != but for one in lines(started, rank))
