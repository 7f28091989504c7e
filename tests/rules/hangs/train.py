"""DDP over gloo as anybody writes it; rank 1 gets stuck in step 20 in the way that `HOW` says."""

import os
import re
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

how = os.environ["HOW"]
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = (torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if how == "loader" and rank == 1 and index == 20:
            time.sleep(1000)  # in the loader's worker
        return torch.randn(8, 64)


def spin():
    count = 0
    while True:
        count += 1
        count %= 7


def evaluate():
    while True:
        torch.randn(300, 300) @ torch.randn(300, 300)


def get_stuck():
    match how:
        case "sleep":
            time.sleep(1000)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "regex":
            re.match(r"(a*)*b", "a" * 40)
        case "spin":
            spin()
        case "evaluation":
            evaluate()
        case "io":
            with open(os.environ["FIFO"]) as never:
                never.read()


samples = iter(DataLoader(Samples(), batch_size=None, num_workers=int(how == "loader")))
for step in range(1000):
    if step == 20:
        print(f"rank {rank} is in step 20", flush=True)
    x = next(samples)
    if step == 20 and how == "everyone":
        evaluate()
    if step == 20 and rank == 1:
        get_stuck()
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 20 and how == "apart":  # each waits for the others in a collective of its own
        dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(3))
    if how in ("barrier", "handle"):
        if step == 20 and rank == 1:
            time.sleep(1000)
        if how == "barrier":
            dist.barrier()
        else:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.wait()
