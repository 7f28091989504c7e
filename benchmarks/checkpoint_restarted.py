"""What is killed in the checkpoint bench: four ranks with 400 MB of state, saved now and then.

torchrun --standalone --nproc_per_node 4 benchmarks/checkpoint_restarted.py FOLDER torch|loom

Each rank appends `ATTEMPT STEP PID TIME_NS` to a file of its own when a step is done; the first
attempt trains until it is killed, the next makes one step. Under torchrun rank 0 saves by
`torch.save`, and every rank loads by `torch.load` when it starts.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STATE = 400 * 10**6  # bytes, most of them frozen: the steps are not what is measured
EVERY = 10
PACE = 0.02


class Network(nn.Module):
    """A small network that is trained, and much beside it that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        frozen = (torch.full((STATE // 4 // 1024 // 8, 1024), 1.5) for _ in range(8))
        self.frozen = nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in frozen)

    def forward(self, samples: Tensor) -> Tensor:
        """Return what the trained part makes of samples."""
        answer: Tensor = self.body(samples)
        return answer


def plain(folder: Path) -> Iterator[int]:
    """Train as one does without us: load, wrap, step, save; yield behind each step."""
    path, net, step = folder / "saved.pt", Network(), 0
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad])
    if path.exists():
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = DistributedDataParallel(net)
    while True:
        train(model, optimizer)
        step += 1
        if step % EVERY == 0 and dist.get_rank() == 0 and not path.exists():
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        yield step


def ours(folder: Path) -> Iterator[int]:
    """Train with a run that saves and goes on by itself; yield behind each step."""
    import torchloom as loom

    run = loom.init()
    run.checkpointing(every_n_steps=EVERY)
    model = run.wrap(Network())
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad])
    run.track(optimizer=optimizer)
    for step in run.steps(1 << 30):
        with step:
            train(model, optimizer)
        yield step.number + 1


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def main(folder: str, how: str) -> None:
    """Train until killed; after that one step more, and leave without a long good-bye."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with Path(folder, str(dist.get_rank())).open("a") as file:
        for count, _ in enumerate((ours if how == "loom" else plain)(Path(folder)), 1):
            print(attempt, count, os.getpid(), time.time_ns(), file=file, flush=True)
            if attempt:
                break
            time.sleep(PACE)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
