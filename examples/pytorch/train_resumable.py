"""Train a network that loses nothing when a process dies: another takes its place.

    loom run -n 4 examples/pytorch/train_resumable.py

Kill a rank with -9 while it trains: a new process takes its place, and the others repeat the
step. With `--policy restart --max-retries 3` all ranks restart from their last checkpoint. The
final weights are the same either way. `loom stop` saves a checkpoint and ends the job;
`loom resume` continues it later, also with another number of ranks.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import torchloom as loom


def main() -> None:
    """Tell digits apart that are drawn by a seed."""
    parser = argparse.ArgumentParser(description="Learn to tell noisy patterns apart.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to rest in each step")
    parser.add_argument("--trace", type=Path, help="a folder: each rank writes down its steps")
    options = parser.parse_args()

    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    weights = train(options)
    print(f"rank {os.environ.get('RANK', '0')}: weights {weights}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def train(options: argparse.Namespace) -> str:
    """Run the training loop of one rank; return a digest of the weights behind it."""
    torch.manual_seed(0)
    run = loom.init(project="patterns")
    run.checkpointing(every_n_steps=options.every)
    model = run.wrap(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    run.track(optimizer=optimizer, scheduler=scheduler)
    loader = run.loader(patterns(4096), batch_size=32)

    for step in run.steps(loader, epochs=options.epochs):
        with step:
            samples, labels = step.batch
            loss = nn.functional.cross_entropy(model(samples), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step.log(loss=loss)
            if options.trace:
                write(options.trace, f"{step.number} {run.generation} {time.time()}\n")
        time.sleep(options.pace)
    return digest(model)


def write(folder: Path, line: str) -> None:
    """Add a line to what this rank has written down."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"rank-{os.environ.get('RANK', '0')}", "a") as file:
        file.write(line)


def network() -> nn.Module:
    """Return a network with all that makes a training hard to repeat: noise, running means."""
    first = (nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(*first, nn.Linear(128, 10))


def patterns(count: int) -> TensorDataset:
    """Return ten patterns under noise, the same ones on every rank."""
    chance = torch.Generator().manual_seed(1)
    shapes = torch.randn(10, 64, generator=chance)
    labels = torch.randint(0, 10, (count,), generator=chance)
    return TensorDataset(shapes[labels] + torch.randn(count, 64, generator=chance), labels)


def digest(model: nn.Module) -> str:
    """Return a few letters that no other weights have."""
    digest = hashlib.sha256()
    parameters: list[Tensor] = [each.detach() for each in model.parameters()]
    for each in parameters:
        digest.update(each.numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
