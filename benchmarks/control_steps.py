"""What is steered in the control bench: data parallel training in steps of five milliseconds.

loom launch -n 4 control_steps.py FOLDER

Each rank writes what it saw to a file of its own when FOLDER/end exists: when each step began
(CLOCK_MONOTONIC), the learning rate its optimizer used, and, every 200 steps, how much processor
time a step cost in the threadlet's thread, in its hooks and in `log`.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as module

import torchloom

PACE = 0.005
WINDOW = 200  # steps


def main(folder: Path) -> None:
    """Train until told to end; all ranks end after the same step."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torchloom.init(project="bench")
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda o, *_: used.append(float(o.param_groups[0]["lr"])))
    spent = Spent()
    began: list[int] = []
    cost: list[float] = []
    ends = torch.zeros(1)
    while not ends.item():
        began.append(time.monotonic_ns())
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        spent.is_blank = not spent.is_blank
        optimizer.step()
        spent.on(run.log, {"loss": 0.1, "accuracy": 0.2, "lr": 0.3, "norm": 0.4, "tokens": 0.5})
        if len(began) % WINDOW == 0:
            cost.append(spent.since_last(WINDOW))
            ends[0] = dist.get_rank() == 0 and (folder / "end").exists()
            dist.broadcast(ends, 0)
        time.sleep(max(0.0, PACE - (time.monotonic_ns() - began[-1]) / 1e9))
    told = {"began": began, "used": used, "cost": cost}
    (folder / f"rank-{dist.get_rank()}").write_text(json.dumps(told))
    dist.barrier()
    del model
    dist.destroy_process_group()


class Spent:
    """Adds up the nanoseconds that the threadlet costs this process.

    Looking at the clock costs about as much as what is measured. So in every other step it is
    looked at in the same places around nothing at all, and what that took is taken off.
    """

    def __init__(self) -> None:
        self.is_blank = False
        self._own = [0, 0]  # in the training thread: with the work, and around nothing
        threads = [each for each in threading.enumerate() if each.name.startswith("loom")]
        if not threads:
            sys.exit("no threadlet is attached")
        self._clocks = [time.pthread_getcpuclockid(each.ident) for each in threads if each.ident]
        for hooks in (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks):
            for key, hook in hooks.items():
                hooks[key] = partial(self.on, hook)
        self._last = self._total()

    def on(self, work: Any, *words: Any) -> Any:
        """Do something, and take the time of it or of nothing."""
        began = time.thread_time_ns()
        if self.is_blank:
            self._own[1] += time.thread_time_ns() - began
            return work(*words)
        done = work(*words)
        self._own[0] += time.thread_time_ns() - began
        return done

    def since_last(self, steps: int) -> float:
        """Return what one step cost since this was asked last, of so many steps."""
        before, self._last = self._last, self._total()
        work, nothing, threads = (b - a for a, b in zip(before, self._last, strict=True))
        return (work - nothing) / (steps / 2) + threads / steps

    def _total(self) -> tuple[int, ...]:
        return (*self._own, sum(time.clock_gettime_ns(clock) for clock in self._clocks))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
