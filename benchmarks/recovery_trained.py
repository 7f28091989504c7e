"""What ranks do in the recovery bench: data parallel training that somebody kills.

loom launch -n 4 benchmarks/recovery_trained.py FOLDER loom
torchrun --standalone --nproc_per_node 4 benchmarks/recovery_trained.py FOLDER torch
python benchmarks/recovery_trained.py FOLDER torchft    # one replica; RANK and TORCHFT_LIGHTHOUSE

Each rank appends `ATTEMPT STEP PID TIME_NS` to a file of its own when an optimizer step is done.
Under torchrun rank 0 saves every EVERY steps, and every rank loads that when it starts.
"""

import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PACE = 0.01  # seconds of a step in which the machine has time for others
EVERY = 50  # steps, in half a second


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def learn(model: nn.Module) -> None:
    model(torch.randn(8, 32)).square().mean().backward()


def ours(folder: Path) -> Iterator[int]:
    """Train with a run that can be recovered; yield the number of each step behind it."""
    import torchloom as loom

    dist.init_process_group("gloo")
    run = loom.init()
    model = run.wrap(network())
    optimizer = sgd(model)
    run.track(optimizer=optimizer)
    for step in run.steps(1 << 30):
        with step:
            learn(model)
            optimizer.step()
            optimizer.zero_grad()
        yield step.number


def plain(folder: Path) -> Iterator[int]:
    """Train as one does under torchrun: load, wrap, step, save now and then."""
    dist.init_process_group("gloo")
    path, net, step = folder / "saved.pt", network(), 0
    optimizer = sgd(net)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = DistributedDataParallel(net)
    while True:
        learn(model)
        optimizer.step()
        optimizer.zero_grad()
        yield step
        step += 1
        if step % EVERY == 0 and dist.get_rank() == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)


def replica(folder: Path) -> Iterator[int]:
    """Train as a replica of torchft: a group of one rank; yield behind committed steps."""
    import torchft

    net = network()
    inner = sgd(net)

    def load(state: dict[str, dict[str, object]]) -> None:
        net.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{os.environ['RANK']}",
    )
    model, optimizer = (
        torchft.DistributedDataParallel(manager, net),
        torchft.Optimizer(manager, inner),
    )
    while True:
        optimizer.zero_grad()
        learn(model)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            yield before


def main(folder: str, how: str) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    train = {"loom": ours, "torch": plain, "torchft": replica}[how]
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    with Path(folder, os.environ["RANK"]).open("a") as file:
        for step in train(Path(folder)):
            print(attempt, step, os.getpid(), time.time_ns(), file=file, flush=True)
            time.sleep(PACE)


if __name__ == "__main__":
    main(*sys.argv[1:])
