"""Knobs changed at full speed act at one step on all ranks, once, and replay to the bit."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ..harness import evidence
from ..harness.forked_ranks import Zygote, free_port, seats
from ..harness.plane_jobs import SCRIPTS, Job, changes_of, used_by

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 4
FIRST = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
RANGES = {"lr": (0.001, 0.1), "momentum": (0.1, 0.95), "weight_decay": (1e-5, 1e-2)}
TELLERS = 3  # who change something at the same time


def drawn(dice: random.Random) -> dict[str, float]:
    """Return values for one knob or several."""
    names = dice.sample(sorted(RANGES), dice.choice((1, 1, 2, 3)))
    return {name: dice.uniform(*RANGES[name]) for name in names}


def change_some(job: Job, seed: int, count: int) -> list[dict[str, Any]]:
    """Change random knobs, one change after the other, some of them at a step to come."""
    dice, outcomes = random.Random(seed), []
    for _ in range(count):
        at = {"at": job.step() + dice.randint(30, 80)} if dice.random() < 0.2 else {}
        outcomes.append(job.set(drawn(dice), hold=dice.random() < 0.3, **at))
    return outcomes


def steer(job: Job, seed: int, count: int) -> list[dict[str, Any]]:
    """Have several people change knobs at once; return all outcomes."""
    share = [count // TELLERS + (teller < count % TELLERS) for teller in range(TELLERS)]
    with ThreadPoolExecutor(TELLERS) as pool:
        told = [pool.submit(change_some, job, seed + at, share[at]) for at in range(TELLERS)]
        return [outcome for each in told for outcome in each.result()]


def replay(plain: Zygote, job: Job, steps: int, out: Path) -> list[list[str]]:
    """Run the program in plain torch with the audit log written in; return each rank's digests."""
    out.mkdir()
    told = {"OUT": out, "STEPS": steps, "CHANGES": json.dumps(changes_of(job.audit()))}
    text = (SCRIPTS / "ddp.py").read_text()
    env = {name: str(value) for name, value in told.items()}
    ended = plain.run(text, seats(WORLD, free_port(), **env), install=False)
    assert [code for code, _ in ended] == [0] * WORLD, ended
    lines = [(out / f"rank-{rank}").read_text().splitlines()[1:] for rank in range(WORLD)]
    return [[json.loads(line)[3] for line in each] for each in lines]


def check(job: Job, outcomes: list[dict[str, Any]], plain: Zygote, out: Path) -> int:
    """Compare the ranks' own files with what was told, and with a replay; return the steps."""
    last = job.stop()
    rows = [job.rows(rank) for rank in range(WORLD)]
    expected = used_by(FIRST, changes_of(outcomes), last)

    assert [[row.step for row in each] for each in rows] == [list(range(last))] * WORLD
    for each in rows:
        assert [row.used for row in each] == expected
    assert changes_of(job.audit()) == changes_of(outcomes)
    assert replay(plain, job, last, out) == [[row.digest for row in each] for each in rows]
    return last


def test_twenty_changes_at_full_speed_act_once_at_one_step_on_four_ranks(
    start: Callable[..., Job], plain: Zygote, tmp_path: Path
) -> None:
    job = start("ddp.py", WORLD).ready()

    outcomes = steer(job, 1, 20)

    assert [one["state"] for one in outcomes] == ["applied"] * 20
    check(job, outcomes, plain, tmp_path / "replay")


@pytest.mark.soak
def test_two_hundred_changes_at_full_speed_act_once_at_one_step_on_four_ranks(
    start: Callable[..., Job], plain: Zygote, tmp_path: Path
) -> None:
    job, seed = start("ddp.py", WORLD).ready(), 1000

    outcomes = steer(job, seed, 200)

    assert [one["state"] for one in outcomes] == ["applied"] * 200
    steps = check(job, outcomes, plain, tmp_path / "replay")
    names = ("payload", "at", "asked_at", "ended_at", "effective_step", "before", "after")
    samples = [{name: one[name] for name in names} for one in outcomes]
    facts = {"changes": 200, "of": 200, "ranks": WORLD, "steps": steps, "seed": seed}
    evidence.write("control-knobs", samples, **facts)
