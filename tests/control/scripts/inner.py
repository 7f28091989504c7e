"""A program whose ranks its own launcher starts; each writes its lr and its weights of every step.

`HOW` is how: `env` where a launcher has set the variables of this process, `spawn` and `fork` where
this process starts two of its own. With `LIVES`, a restart writes into a folder of its own.
"""

import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


def train(rank: int, world: int) -> None:
    folder = os.environ["OUT"]
    if "LIVES" in os.environ and (life := os.environ["TORCHELASTIC_RESTART_COUNT"]) != "0":
        folder = f"{folder}/{life}"
        os.makedirs(folder, exist_ok=True)
    out = os.open(f"{folder}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write(out, {"pid": os.getpid()})
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1_000_000):
        before = model.module.bias.item()
        loss = model(torch.full((2, 4), 1.0 + rank)).sum() * 1e-3
        loss.backward()
        gradient = model.module.bias.grad.item()
        optimizer.step()
        optimizer.zero_grad()
        used = round((before - model.module.bias.item()) / gradient, 4)
        weights = torch.nn.utils.parameters_to_vector(model.parameters())
        digest = hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()[:16]
        write(out, [step, time.monotonic(), {"lr": used}, digest])
        time.sleep(0.005)


def write(out: int, line: object) -> None:
    os.write(out, json.dumps(line).encode() + b"\n")


def one(rank: int) -> None:
    meeting = f"file://{os.environ['OUT']}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    train(rank, WORLD)


if __name__ == "__main__":
    how = os.environ.get("HOW", "env")
    if how == "env" and "INIT" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", os.environ["INIT"], rank=rank, world_size=world)
    elif how == "env":
        dist.init_process_group("gloo")
    if how == "env":
        train(dist.get_rank(), dist.get_world_size())
    else:
        mp.start_processes(one, nprocs=WORLD, start_method=how)
