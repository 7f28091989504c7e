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
        optimizer.step()
        with spent:
            run.log(loss=0.1, accuracy=0.2, lr=0.3, norm=0.4, tokens=0.5)
        if len(began) % WINDOW == 0:
            cost.append(spent.since_last() / WINDOW)
            ends[0] = dist.get_rank() == 0 and (folder / "end").exists()
            dist.broadcast(ends, 0)
        time.sleep(max(0.0, PACE - (time.monotonic_ns() - began[-1]) / 1e9))
    told = {"began": began, "used": used, "cost": cost}
    (folder / f"rank-{dist.get_rank()}").write_text(json.dumps(told))
    dist.barrier()
    del model
    dist.destroy_process_group()


class Spent:
    """Adds up the nanoseconds that the threadlet costs this process."""

    def __init__(self) -> None:
        self.own = 0  # in the training thread
        threads = [each for each in threading.enumerate() if each.name.startswith("loom")]
        if not threads:
            sys.exit("no threadlet is attached")
        self._clocks = [time.pthread_getcpuclockid(each.ident) for each in threads if each.ident]
        for hooks in (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks):
            for key, hook in hooks.items():
                hooks[key] = self._timed(hook)
        self._last = self._total()

    def since_last(self) -> int:
        """Return what was spent since this was asked last."""
        before, self._last = self._last, self._total()
        return self._last - before

    def _total(self) -> int:
        return self.own + sum(time.clock_gettime_ns(clock) for clock in self._clocks)

    def _timed(self, hook: Any) -> Any:
        def timed(*words: Any) -> Any:
            with self:
                return hook(*words)

        return timed

    def __enter__(self) -> None:
        self._entered = time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        self.own += time.thread_time_ns() - self._entered


if __name__ == "__main__":
    main(Path(sys.argv[1]))
