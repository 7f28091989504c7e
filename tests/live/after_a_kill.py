"""What ranks do that are killed to see what follows: they write down when they did what.

Each rank appends a line `WHAT PID GENERATION STEP TIME_NS` to a file of its own: `main` when the
program begins, `ready` when its set-up is done, `begun` and `done` at both ends of a step, and
`broken` when a step ended by an exception.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

PACE = 0.01  # seconds of a step in which the machine has time for others
FILE = Path(os.environ["OUT"]) / f"rank-{os.environ['RANK']}"


def note(what: str, generation: int = -1, step: int = -1) -> None:
    file.write(f"{what} {os.getpid()} {generation} {step} {time.time_ns()}\n".encode())


with FILE.open("ab", buffering=0) as file:
    note("main")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    run = loom.init()
    model = run.wrap(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run.track(optimizer=optimizer)
    note("ready")
    for step in run.steps(1 << 30):
        with step:
            note("begun", run.generation, step.number)
            try:
                model(torch.randn(8, 32)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            except Exception:
                note("broken", run.generation, step.number)
                raise
            time.sleep(PACE)
        if step.is_done:
            note("done", run.generation, step.number)
