"""Move the state of a peer in the recovery bench, beside loading the same bytes by DCP.

python -m benchmarks.recovery_moved FOLDER BYTES near|far

Two processes, as two ranks of one host, or of two with a link between them (network namespaces).
For each line it is given, the second gets all of the first's state, or loads it from a checkpoint
that the page cache has, into tensors that are there; it answers with the milliseconds. `peer` is
what a newcomer does; `dcp` is `dcp.load` by one rank; `plain` is so many bytes of a TCP stream,
read into the same small buffer again and again, as iperf does it.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from benchmarks import recovery_link as link
from torch import Tensor
from torch.distributed import checkpoint as dcp

from torchloom.messages.membership import Given
from torchloom.worker.recovery.transfer import moves

PARTS = 40
_STATE, _STREAM = b"s", b"p"
Ask = Callable[[bytes], object]
Taking = Callable[[int], dict[str, Tensor]]


def main(folder: Path, size: int, is_near: bool) -> None:
    """Be both ranks; the second listens and answers."""
    torch.set_num_threads(1)
    listens, tells = os.pipe()
    rank = 1 if (link.pair() if not is_near else os.fork()) else 0
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    state = {f"w{n}": torch.full((size // PARTS // 4,), float(1 - rank)) for n in range(PARTS)}
    nodes = ("here", "here" if is_near else "there")
    taking = partial(take, state, rank, nodes, folder)
    if rank == 0:
        dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    dist.barrier()
    if rank == 0:
        os.close(tells)
        serve(listens, size, taking)
    answer(state, folder, partial(os.write, tells), size, taking)


def serve(listens: int, size: int, taking: Taking) -> None:
    """Give what is asked for, until nobody asks any more."""
    number = 0
    for asked in iter(partial(os.read, listens, 1), b""):
        if asked == _STATE:
            taking(number)
            number += 1
        else:
            link.send(size)
    os._exit(0)


def answer(state: dict[str, Tensor], folder: Path, ask: Ask, size: int, taking: Taking) -> None:
    """Do what each line says; answer how long it took when all of it is right."""
    number = 0
    for line in map(str.strip, sys.stdin):
        for tensor in state.values():
            tensor.zero_()
        began = time.perf_counter()
        if line == "peer":
            ask(_STATE)
            found = taking(number)
            for name, tensor in state.items():
                if found[name] is not tensor:
                    tensor.copy_(found[name])
            number += 1
        elif line == "plain":
            ask(_STREAM)
            began = link.receive(size)
        else:
            dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)
        took = (time.perf_counter() - began) * 1000
        right = line == "plain" or all(tensor.eq(1.0).all() for tensor in state.values())
        print(took if right else "nan", flush=True)


def take(
    state: dict[str, Tensor], me: int, nodes: tuple[str, str], folder: Path, number: int
) -> dict[str, Tensor]:
    """Have rank 1 take what rank 0 has, as the members of a generation do."""
    given = (Given(1, "state", 0, 0),)
    shm = Path("/dev/shm", f"loom-bench-{folder.name}")
    shm.mkdir(mode=0o700, exist_ok=True)
    own = tuple(state.values()) if me == 1 else ()
    told = given, me, nodes, shm, number
    taken = moves.give_and_take(*told, lambda: dict(state), lambda step: {}, own)
    return taken.shared or {}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "near")
