"""What a threadlet that nobody commands costs a step: `loom launch -n 1 control_idle.py FILE`.

The difference, a step, of a tight loop with it and without, in one process and by turns. As
`attached`: an optimizer that does nothing, its hooks in and out. As `api`: `run.steps` and `range`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as module

import torchloom

TURNS, STEPS = 161, 500  # the first turn warms up


class Nothing(torch.optim.Optimizer):
    """An optimizer whose step is free, so that only what surrounds it is measured."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def attached() -> list[float]:
    """Return microseconds a step that the hooks add."""
    optimizer = Nothing([torch.zeros(1)], {"lr": 0.1})
    hooks: tuple[Any, Any] = (
        module._global_optimizer_pre_hooks,
        module._global_optimizer_post_hooks,
    )
    if not all(hooks):
        sys.exit("no threadlet is attached")
    kept = [dict(each) for each in hooks]
    added = []
    for _ in range(TURNS):
        with_it = timed(lambda: repeat(optimizer.step))
        for each in hooks:
            each.clear()
        without = timed(lambda: repeat(optimizer.step))
        for each, was in zip(hooks, kept, strict=True):
            each.update(was)
        added.append((with_it - without) / STEPS / 1000)
    return added[1:]


def api() -> list[float]:
    """Return microseconds a step that `run.steps` adds to a loop."""
    run = torchloom.init()
    added = []
    for _ in range(TURNS):
        with_it = timed(lambda: [None for _ in run.steps(STEPS)])
        without = timed(lambda: [None for _ in range(STEPS)])
        added.append((with_it - without) / STEPS / 1000)
    return added[1:]


def repeat(work: Any) -> None:
    for _ in range(STEPS):
        work()


def timed(work: Any) -> int:
    """Return the nanoseconds of processor time that this thread takes for something."""
    began = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began


if __name__ == "__main__":
    found = {"attached": attached(), "api": api()}
    Path(sys.argv[1]).write_text(json.dumps(found))
