"""The parts of the demo in which a rank is killed, with restart and with live recovery."""

import functools
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from stage import RANKS, NotShown, Stage, show_command, show_result, until

LOOM = ".venv/bin/loom"
SAVING = "examples/pytorch/train_resumable.py"
WEIGHTS = re.compile(r"rank (\d): weights ([0-9a-f]{16})")
VICTIM = 2


def recover(stage: Stage) -> None:
    """Kill a rank after a checkpoint; compare the weights with those of an undisturbed run."""
    words = ("--policy", "restart", "--max-retries", "3", SAVING, "--pace", "0.03")
    job = json.loads(stage.ask("run", "-d", "--json", "-n", str(len(RANKS)), *words) or "{}")["id"]
    run = stage.home / "runs" / job
    until(lambda: list(run.glob("checkpoints/ckpt_step_*[0-9]/manifest.json")) != [])
    kill(run)
    stage.loom("show", "--wait", job)
    again = [event for event in events(run) if event["event"] == "resuming"]
    if len(again) != 1 or not again[0]["step"]:
        raise NotShown(f"the run did not resume from a checkpoint: {again}")
    show_result(f"rank {VICTIM} was killed; all ranks resumed from step {again[0]['step']}")
    compare(stage, job)


def outlive(stage: Stage) -> None:
    """Kill a rank; the other processes keep running and repeat the step."""
    trace = stage.home / "trace"
    words = (SAVING, "--pace", "0.03", "--trace", str(trace))
    job = json.loads(stage.ask("run", "-d", "--json", "-n", str(len(RANKS)), *words) or "{}")["id"]
    run, files = stage.home / "runs" / job, [trace / f"rank-{rank}" for rank in RANKS]
    until(lambda: any(event["event"] == "watched" for event in events(run)))
    until(lambda: all(len(steps(file)) > 20 for file in files))
    others = {rank: pid_of(run, rank) for rank in RANKS if rank != VICTIM}
    killed = kill(run)
    until(lambda: all(steps(file)[-1][1] for file in files))  # the next generation
    seconds = max(first(file)[2] for file in files) - killed
    done = max(step for rank in others for step, born, _ in steps(files[rank]) if not born)
    lost = done + 1 - min(first(file)[0] for file in files)
    if others != {rank: pid_of(run, rank) for rank in others}:
        raise NotShown("another rank than the one that was killed has a new process")
    names = ", ".join(map(str, others))
    back = f"rank {VICTIM} back after {seconds * 1000:.0f} ms"
    show_result(f"{back}, {lost} steps lost, ranks {names} never stopped")
    stage.ask("show", "--wait", job, limit=60)
    show_command(f"{LOOM} logs @ --regex weights")
    stage.loom("logs", job, "--regex", "weights")
    if lost:
        raise NotShown(f"{lost} steps were lost")
    compare(stage, job)


def steps(file: Path) -> list[tuple[int, int, float]]:
    """Return what a rank wrote of its steps: number, generation, and when it was done."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(int(step), int(born), float(at)) for step, born, at in whole]


def first(file: Path) -> tuple[int, int, float]:
    """Return a rank's first step of the next generation."""
    return next(step for step in steps(file) if step[1])


def kill(run: Path) -> float:
    """Kill a rank with -9; return when."""
    victim = pid_of(run, VICTIM)
    show_command(f"kill -9 {victim}    # rank {VICTIM}")
    at = time.time()
    os.kill(victim, signal.SIGKILL)
    return at


def compare(stage: Stage, job: str) -> None:
    """Compare the weights that a run ended with to those of an undisturbed run."""
    same = weights(stage.ask("logs", job)) == undisturbed(stage)
    show_result(f"weights identical to an undisturbed run: {'yes' if same else 'no'}")
    if not same:
        raise NotShown("the weights are not those of an undisturbed run")


@functools.cache
def undisturbed(stage: Stage) -> dict[int, str]:
    """Return the weights of an undisturbed run."""
    return weights(stage.ask("run", "-n", str(len(RANKS)), SAVING, limit=60))


def weights(text: str) -> dict[int, str]:
    """Return the digest that each rank printed of its weights."""
    found = {int(rank): digest for rank, digest in WEIGHTS.findall(text)}
    if sorted(found) != list(RANKS):
        raise NotShown(f"not every rank printed its weights: {found}")
    return found


def pid_of(run: Path, rank: int) -> int:
    """Return the process of a rank, by the record in its run's folder."""
    ranks = json.loads((run / "status.json").read_bytes())["ranks"]
    return next(int(one["process"]["pid"]) for one in ranks if one["rank"] == rank)


def events(run: Path) -> list[dict[str, Any]]:
    """Return what happened to a run, as its folder has it."""
    file = run / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
