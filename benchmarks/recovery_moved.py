"""Move the state of a peer in the recovery bench, beside loading the same bytes by DCP.

python recovery_moved.py FOLDER BYTES

Two processes, as two ranks of one host. For each line it is given, the second gets all of the
first's state, or loads it from a checkpoint that the page cache has, into tensors that are there;
it answers with the milliseconds. `shm` is what a newcomer does; `dcp` is `dcp.load` by one rank.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint as dcp

from torchloom.bus.regrouping import Given
from torchloom.worker.live import moving

PARTS = 40


def main(folder: Path, size: int) -> None:
    """Be both ranks; the second listens and answers."""
    torch.set_num_threads(1)
    listens, tells = os.pipe()
    rank = 1 if os.fork() else 0
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    state = {f"w{n}": torch.full((size // PARTS // 4,), float(1 - rank)) for n in range(PARTS)}
    if rank == 0:
        dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    dist.barrier()
    if rank == 0:
        os.close(tells)
        for number, _ in enumerate(iter(lambda: os.read(listens, 1), b"")):
            take(state, 0, folder, number)
        os._exit(0)
    answer(state, folder, lambda: os.write(tells, b"."))


def answer(state: dict[str, Tensor], folder: Path, ask: Callable[[], object]) -> None:
    """Do what each line says; answer how long it took when all of it is right."""
    number = 0
    for line in sys.stdin:
        for tensor in state.values():
            tensor.zero_()
        began = time.perf_counter()
        if line.strip() == "shm":
            ask()
            found = take(state, 1, folder, number)
            for name, tensor in state.items():
                tensor.copy_(found[name])
            number += 1
        else:
            dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)
        took = (time.perf_counter() - began) * 1000
        right = all(tensor.eq(1.0).all() for tensor in state.values())
        print(took if right else "nan", flush=True)


def take(state: dict[str, Tensor], me: int, folder: Path, number: int) -> dict[str, Tensor]:
    """Have rank 1 take what rank 0 has, as the members of a generation do."""
    given = (Given(1, "state", 0, 0),)
    shm = Path("/dev/shm", f"loom-bench-{folder.name}")
    shm.mkdir(mode=0o700, exist_ok=True)
    taken = moving.give_and_take(
        given, me, ("here", "here"), shm, number, lambda: dict(state), lambda step: {}
    )
    return taken.shared or {}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
