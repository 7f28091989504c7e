"""What every launcher starts in the launch bench: data parallel training, unmodified.

torchrun --standalone --nproc_per_node 4 benchmarks/ddp.py FOLDER leave|idle|train

Each rank appends `ATTEMPT STEP PID TIME_NS` to a file of its own when an optimizer step is done.
`leave` ends after the first, `idle` sleeps from then on, `train` goes on until the attempt dies.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PACE = 0.01  # seconds between steps: the next attempt starts on cores that somebody uses


def main(folder: str, then: str) -> None:
    """Train as told; leave without the interpreter's long good-bye."""
    dist.init_process_group("gloo")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    with Path(folder, str(dist.get_rank())).open("a") as file:
        while step == 0 or (then == "train" and attempt == 0):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            step += 1
            print(attempt, step, os.getpid(), time.time_ns(), file=file, flush=True)
            time.sleep(PACE if then == "train" else 0)
    while then == "idle":
        signal.pause()
    del model, optimizer  # before its group: destroying it first can hang
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
