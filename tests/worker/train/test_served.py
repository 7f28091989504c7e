"""Who waits for whom where one worker of parameter servers is slow, by the workers own files.

The long form leaves `docs/evidence/parameter-server.json` behind.
"""

import statistics
from pathlib import Path
from typing import Any

import pytest

from ...harness import evidence
from ...harness.forked_ranks import Zygote, free_port, seats
from .conftest import ENTRY, rows
from .jobs import words

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORKERS, SLOW = 4, 3
SERVER = """
import os, runpy
if "SERVES" in os.environ:
    runpy.run_module("torchloom.worker.servers", run_name="__main__", alter_sys=True)
else:
    exec(os.environ["ENTRY"])
"""
WINDOW = 60  # rows whose mean is the loss at a moment
Row = tuple[float, float, int]  # when, the loss, and which rank


def trained(zygote: Zygote, folder: Path, steps: int, pace: float, **mode: Any) -> list[list[Any]]:
    """Train with one server; return what each worker wrote of its steps."""
    import numpy

    chance = numpy.random.default_rng(0)
    y = chance.integers(0, 3, steps * WORKERS * 8)
    x = chance.normal(size=(len(y), 6)) + numpy.eye(3, 6)[y] * 2
    numpy.savez(folder / "table.npz", x=x.astype("float32"), y=y)
    told = words(
        {"batch_size": 8, "eval_fraction": 0, "optimizer": "sgd", "lr": 0.02, "own_pace": pace},
        model="module:uneven.net",
        dataset=f"npz:{folder / 'table.npz'}",
        seed=1,
        resources={"workers": WORKERS},
        distributed={"strategy": "parameter_server", **mode},
    )
    env = {"OUT": str(folder), "LOOM_JOB_SPEC": told, "LOOM_HOME": str(folder), "LOOM_JOB": "job"}
    there = seats(WORKERS, free_port(), ENTRY=ENTRY, HOME=str(folder), **env)
    server = {**there[0], "SERVES": "1"}
    ended = zygote.run(SERVER, [*there, server], install=False)
    assert [code for code, _ in ended] == [0] * (WORKERS + 1), ended
    return rows(folder, WORKERS)


def test_nobody_waits_for_a_slow_worker_unless_it_is_too_far_behind(
    zygote: Zygote, tmp_path: Path
) -> None:
    steps, bound = 40, 10

    written = trained(zygote, tmp_path, steps, 0.005, push="async", staleness=bound)

    assert [len(each) for each in written] == [steps] * WORKERS
    slow = [at for at, _ in written[SLOW]]
    for fast in written[:SLOW]:
        ahead = [done - sum(each < at for each in slow) for done, (at, _) in enumerate(fast)]
        # A worker that begins step n has pushed n; the slow one writes just before it pushes.
        assert max(ahead) <= bound
        assert max(ahead) >= bound - 1  # it was not waited for until then


def in_order(written: list[list[Any]]) -> list[Row]:
    """Return the steps of all workers by time, which begins with the first."""
    found = sorted((at, loss, rank) for rank, each in enumerate(written) for at, loss in each)
    return [(at - found[0][0], loss, rank) for at, loss, rank in found]


def reached(steps: list[Row], goal: float) -> tuple[int, float]:
    """Return after how many steps, and when, the loss was this low."""
    for end in range(WINDOW, len(steps) + 1):
        if statistics.fmean(loss for _, loss, _ in steps[end - WINDOW : end]) <= goal:
            return end, steps[end - 1][0]
    raise AssertionError("it never learned as much")


@pytest.mark.soak
def test_async_has_twice_the_throughput_at_equal_loss_with_a_slow_worker(
    zygote: Zygote, tmp_path: Path
) -> None:
    steps, samples = 100, []
    for turn in range(3):
        both = {}
        for mode in ({"push": "sync"}, {"push": "async", "staleness": steps}):
            folder = tmp_path / f"{mode['push']}-{turn}"
            folder.mkdir()
            both[mode["push"]] = in_order(trained(zygote, folder, steps, 0.06, **mode))
        half = both["sync"][: len(both["sync"]) // 2]  # later the slow one would train alone
        goal = statistics.fmean(loss for _, loss, _ in half[-WINDOW:])
        found = {name: reached(each, goal) for name, each in both.items()}
        rates = {name: 8 * count / seconds for name, (count, seconds) in found.items()}
        sample = {f"{name}_samples_per_s": round(rate, 1) for name, rate in rates.items()}
        times = {f"{name}_seconds": round(seconds, 2) for name, (_, seconds) in found.items()}
        samples.append({"loss": round(goal, 4), **sample, **times})

    ratios = [each["async_samples_per_s"] / each["sync_samples_per_s"] for each in samples]
    facts: dict[str, Any] = {
        "workers": WORKERS,
        "slower": 4,
        "goal": "the loss of sync at half of its steps",
    }
    facts |= {"times_the_throughput": round(min(ratios), 2)}
    evidence.write("parameter-server", samples, **facts)
    assert min(ratios) >= 2
