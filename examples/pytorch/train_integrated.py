"""Train a small classifier that can be watched and changed while it trains.

    python examples/pytorch/train_integrated.py --replica-id hi      alone, without a plane
    loom run -n 2 examples/pytorch/train_integrated.py --steps 20000 --replica-id hi

and, while the second one runs, from another shell:

    loom set temperature=0.5
    loom set lr=0.01
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom


def main() -> None:
    """Tell two crescents of points apart; every rank draws its own."""
    parser = argparse.ArgumentParser(description="Tell two crescents of points apart.")
    parser.add_argument("--project", default="crescents")
    parser.add_argument("--replica-id", default="", help="the replica group this rank belongs to")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()

    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    train(options, rank, world)
    if world > 1:
        dist.destroy_process_group()


def train(options: argparse.Namespace, rank: int, world: int) -> None:
    """Run the training loop of one rank, between two steps of which anything may change."""
    run = loom.init(project=options.project, replica=options.replica_id)
    run.knob("temperature", 1.0, min=0.05, max=20.0)  # how sure the model must be of itself
    run.on("temperature", lambda value: print(f"rank {rank}: temperature {value}", flush=True))

    torch.manual_seed(0)  # the same weights everywhere, then samples of one's own
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    model: nn.Module = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    samples = torch.Generator().manual_seed(rank)

    for step in run.steps(options.steps):
        with step:
            points, labels = crescents(128, samples)
            answers = model(points)
            loss = nn.functional.cross_entropy(answers / run.config["temperature"], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step.log(loss=loss, right=(answers.argmax(1) == labels).float().mean())
        if rank == 0 and step.number % max(1, options.steps // 5) == 0:
            print(f"step {step.number:5d}  loss {loss.item():.4f}", flush=True)

    points, labels = crescents(2000, samples)
    right = (net(points).argmax(1) == labels).float().mean().item()
    print(f"rank {rank} of {world}: {right:.1%} right after {run.applied} steps", flush=True)


def crescents(count: int, samples: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points on two half circles that reach into each other, and on which each lies."""
    labels = torch.randint(2, (count,), generator=samples)
    angle = torch.rand(count, generator=samples) * torch.pi
    side = 1.0 - 2.0 * labels  # the second one hangs upside down
    points = torch.stack((side * angle.cos() + labels, side * angle.sin() + 0.5 * labels), dim=1)
    return points + 0.15 * torch.randn(count, 2, generator=samples), labels


if __name__ == "__main__":
    main()
