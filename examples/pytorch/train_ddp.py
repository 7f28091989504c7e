"""Train a small network on several processes with DistributedDataParallel; the loss falls.

Any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT will do:

    loom run -n 4 examples/pytorch/train_ddp.py
    torchrun --nproc-per-node 4 examples/pytorch/train_ddp.py --steps 200
"""

import argparse
import itertools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Learn sin(x) from samples that every rank draws for itself."""
    parser = argparse.ArgumentParser(description="Fit sin(x) with a small network.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--trace", type=Path, help="where each rank writes the lr of every step")
    options = parser.parse_args()

    device = pick_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(device, options.steps, options.lr, options.trace)
    # By now the model is gone, which the group must outlive. Gloo's threads may still ask for the
    # interpreter while it shuts down, and then abort the process: leave without a shutdown.
    dist.destroy_process_group()
    os._exit(0)


def train(device: torch.device, steps: int, lr: float, trace: Path | None) -> None:
    """Run the training loop of one rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}: pid {os.getpid()}, {device}", flush=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    samples = torch.Generator().manual_seed(rank)
    if trace:
        write_lr(optimizer, trace / f"rank-{rank}")

    for step in range(steps):
        x = torch.rand(256, 1, generator=samples).to(device) * 6 - 3
        loss = nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Each rank's own loss: a collective of ours here would race with the interpreter's exit.
        if rank == 0 and (step % max(1, steps // 5) == 0 or step == steps - 1):
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)

    weights = sum(float(p.detach().abs().sum()) for p in model.parameters())
    print(f"rank {rank} of {world}: done, sum of weights {weights:.6f}", flush=True)


def write_lr(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Have every step write down its number and the learning rate it uses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines, numbers = path.open("w", buffering=1), itertools.count()

    def note(used: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        lines.write(f"{next(numbers)} {used.param_groups[0]['lr']}\n")

    optimizer.register_step_pre_hook(note)


def pick_device() -> torch.device:
    """Return this rank's GPU when there is one for each local rank, else the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    torch.set_num_threads(1)
    return torch.device("cpu")


if __name__ == "__main__":
    main()
