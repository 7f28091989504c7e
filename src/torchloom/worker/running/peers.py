"""What the ranks of a run tell each other before their first step: one number each."""

import torch
import torch.distributed as dist

from torchloom.worker.dist.collectives import TorchCollectives


def together() -> bool:
    """Tell whether this rank has peers that it can ask."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(number: int) -> list[int]:
    """Return every rank's number, in rank order; all come here together."""
    if not together():
        return [number]
    told = TorchCollectives().allgather(torch.tensor([number], dtype=torch.int64))
    return [int(each.item()) for each in told]


def backend() -> str:
    """Return what the ranks speak over; empty for one without peers."""
    return str(dist.get_backend()) if together() else ""
