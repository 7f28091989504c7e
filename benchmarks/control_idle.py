"""What a threadlet that nobody commands costs a step: `loom launch -n 1 control_idle.py FILE`.

The difference, a step, of a tight loop with it and without, in one process and by turns. As
`attached`: an optimizer that does nothing, its hooks in and out. As `api`: `run.steps` and `range`.
As `observed`: a plain loop with a loss, a DataLoader and clipped gradients, what observes it in and
out.
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


def observed() -> list[float]:
    """Return microseconds a step that the curve of a loss, its batches and its norm add."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS, 8))

    def train() -> None:
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=1):
            model(batch).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    wrapped = [
        (torch.autograd, "backward"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
    ]
    kept = [getattr(owner, name) for owner, name in wrapped]
    if not all(hasattr(each, "__wrapped__") for each in kept):
        sys.exit("nothing observes the loop")
    added = []
    for _ in range(TURNS // 4):
        with_it = timed(train)
        for (owner, name), each in zip(wrapped, kept, strict=True):
            setattr(owner, name, inner(each))
        without = timed(train)
        for (owner, name), each in zip(wrapped, kept, strict=True):
            setattr(owner, name, each)
        added.append((with_it - without) / STEPS / 1000)
    return added[1:]


def inner(function: Any) -> Any:
    """Return what wrappers around a function call in the end."""
    while hasattr(function, "__wrapped__") and "torchloom" in function.__code__.co_filename:
        function = function.__wrapped__
    return function


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
    found = {"attached": attached(), "observed": observed(), "api": api()}
    Path(sys.argv[1]).write_text(json.dumps(found))
