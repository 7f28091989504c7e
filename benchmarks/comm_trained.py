"""Two ranks of two hosts that train over a shaped link, for the comm bench.

python -m benchmarks.comm_trained RATE

Each line asks for one thing, with the name of a way to exchange gradients and a seed: `time` for
the milliseconds until the held-out loss is low enough, `bytes` for what rank 0 has sent in so many
steps, `loss` for the held-out loss after them. `ddp`, `fp16` and `powersgd` are torch's own DDP and
hooks; the others are what `run.wrap(model, compression=...)` puts in their place.
"""

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks import recovery_link as link
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torchloom.specs.jobspec import Algorithm, Compression
from torchloom.specs.jobspec_shape import with_defaults
from torchloom.worker.run.exchange import GradientExchange, WeightExchange
from torchloom.worker.run.wrap import Wrapped

WIDTH, LAYERS, BATCH = 640, 3, 16  # 1.2 million weights: 4.9 MB of gradients a step
LOW = 0.6  # the held-out loss to reach, of 2.3 at the start
MOST, STEPS, LOOK = 400, 250, 4
RATE = 0.1
GIVEN = {
    "topk": Compression(True, Algorithm.TOPK, k=0.01),
    "onebit": Compression(True, Algorithm.ONEBIT, warmup_steps=0),
    "int8": Compression(True, Algorithm.INT8),
    "local": Compression(True, sync_every=8, outer_lr=1.0, outer_momentum=0.0),
    "diloco": Compression(True, sync_every=250, outer_lr=1.0, outer_momentum=0.0),
}
NAMES = ("ddp", "fp16", "powersgd", *GIVEN)
KINDS = ("time", "bytes", "loss")


def main(rate: str) -> None:
    """Be both ranks; the first one listens and answers."""
    torch.set_num_threads(1)
    rank = 1 if link.pair() == 0 else 0
    shape = ["rate", rate, "burst", "256kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "loom0", "root", "tbf", *shape], check=True)
    store = dist.TCPStore("10.77.0.1", 29500, 2, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    task = torch.zeros(3, dtype=torch.int64)
    while True:
        if rank == 0:
            words = sys.stdin.readline().split()
            asked = (
                [KINDS.index(words[0]), NAMES.index(words[1]), int(words[2])] if words else [-1] * 3
            )
            task.copy_(torch.tensor(asked))
        dist.broadcast(task, 0)
        if int(task[0]) < 0:
            return
        answer = measured(KINDS[int(task[0])], NAMES[int(task[1])], int(task[2]))
        if rank == 0:
            print(answer, flush=True)


def parsed(words: list[str]) -> list[int]:
    """Return a line as numbers."""
    return [KINDS.index(words[0]), NAMES.index(words[1]), int(words[2])]


def measured(kind: str, name: str, seed: int) -> float:
    """Return one number about one way."""
    if kind == "time":
        return 1000 * trained(name, seed, MOST, LOW)[0]
    _, loss, sent = whole(name, seed)
    return loss if kind == "loss" else float(sent)


@cache
def whole(name: str, seed: int) -> tuple[float, float, int]:
    """Train all steps, once."""
    return trained(name, seed, STEPS, 0.0)


def trained(name: str, seed: int, steps: int, low: float) -> tuple[float, float, int]:
    """Train until a loss is low enough, or so many steps; return seconds, the loss, and bytes."""
    torch.manual_seed(seed)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    held_out = data(10**6)
    model, passed, is_whole = wrapped(name, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    dist.barrier()
    before, began, loss = sent_bytes(), time.perf_counter(), float("nan")
    for step in range(steps):
        inputs, labels = data(seed * 10**4 + 2 * step + dist.get_rank())
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        passed()
        if (low and (step + 1) % LOOK == 0 and is_whole(step + 1)) or step + 1 == steps:
            loss = float(loss_of(net, held_out))
            if loss <= low:
                break
    took = time.perf_counter() - began
    if low and not loss <= low:
        took = float("nan")
    return took, loss, sent_bytes() - before


def wrapped(
    name: str, net: nn.Module
) -> tuple[Callable[..., Any], Callable[[], object], Callable[[int], bool]]:
    """Return the model, what to call behind a step, and whether ranks are alike behind a step."""
    if name in GIVEN:
        given = with_defaults(GIVEN[name])
        if given.sync_every is None:
            exchange = GradientExchange(name, net, given, None, lambda: given.k or 1.0, list)
            return Wrapped(net, {}, True, exchange), lambda: None, lambda _: True
        every = given.sync_every
        outer = WeightExchange(net, given, lambda: every)
        outer.start(is_sent=True)
        return net, outer.passed, lambda step: step % every == 0
    model = DistributedDataParallel(net)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model, lambda: None, lambda _: True


@cache
def teacher() -> nn.Module:
    """Return what decides which of ten classes an input is."""
    torch.manual_seed(0)
    return copy.deepcopy(nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 10)))


@torch.no_grad()
def data(number: int) -> tuple[Tensor, Tensor]:
    """Return a batch by its number; a large one to judge by."""
    count = 1024 if number == 10**6 else BATCH
    inputs = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(number))
    inputs[:, 8:] *= 0.05  # what decides is in few of them
    return inputs, teacher()(inputs).argmax(1)


@torch.no_grad()
def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def sent_bytes() -> int:
    """Return what has left this host, by the kernel's count."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (own,) = [line.split() for line in lines if line.strip().startswith("loom0:")]
    return int(own[9])


if __name__ == "__main__":
    main(sys.argv[1])
