"""What ranks say to each other: one interface, over torch.distributed or over nobody."""

from typing import Any, Literal, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from torchloom.errors import UserError, shorten
from torchloom.worker.dist.device import get_torch_device

Op = Literal["sum", "mean", "min", "max", "prod"]
T = TypeVar("T")

OPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}
_NEEDS_DEVICE = ("nccl", "xccl", "ccl")  # backends that take no tensors of the host


class BadCollective(UserError):
    """An operation, a shape or a peer that cannot be meant."""

    code = "bad_collective"


class Collectives(Protocol):
    """Tensors given are left as they are, but for `recv`, which fills one; results are new."""

    rank: int
    size: int

    def allreduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return the ranks' tensors reduced to one, on every rank."""

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's tensor, in rank order."""

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Reduce, and return this rank's share of the first dimension."""

    def send(self, tensor: Tensor, to: int) -> None:
        """Give a tensor to one rank, which must `recv` it."""

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Fill the tensor with what a rank sends, and return it."""

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Return the tensor of one rank; the others' give shape and type."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


class Alone:
    """A world of one: everything said is heard by oneself."""

    rank = 0
    size = 1

    def allreduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return a copy."""
        _check_op(op)
        return tensor.detach().clone()

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        """Return a copy, as the only one."""
        return [tensor.detach().clone()]

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return a copy: the whole is our share."""
        _check_op(op)
        _share(tensor, 1)
        return tensor.detach().clone()

    def send(self, tensor: Tensor, to: int) -> None:
        """Refuse: there is nobody else."""
        _check_peer(to, self.rank, self.size)

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Refuse: there is nobody else."""
        _check_peer(source, self.rank, self.size)
        return tensor

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Return a copy."""
        _check_rank(root, self.size)
        return tensor.detach().clone()

    def barrier(self) -> None:
        """Wait for nobody."""


class TorchCollectives:
    """The ranks of a process group of torch."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._on_device = dist.get_backend(group) in _NEEDS_DEVICE

    def allreduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return the ranks' tensors reduced to one, on every rank."""
        _check_op(op)
        moved = self._moved(tensor)
        dist.all_reduce(moved, OPS["sum" if op == "mean" else op], self._group)
        return self._back(_mean(moved, self.size) if op == "mean" else moved, tensor)

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's tensor, in rank order; all must have one shape."""
        moved = self._moved(tensor)
        found = [torch.empty_like(moved) for _ in range(self.size)]
        dist.all_gather(found, moved, self._group)
        return [self._back(each, tensor) for each in found]

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Reduce, and return this rank's share of the first dimension."""
        _check_op(op)
        rows = _share(tensor, self.size)
        moved = self._moved(tensor)
        share = moved.new_empty((rows, *moved.shape[1:]))
        shares = list(moved.tensor_split(self.size))
        dist.reduce_scatter(share, shares, OPS["sum" if op == "mean" else op], self._group)
        return self._back(_mean(share, self.size) if op == "mean" else share, tensor)

    def send(self, tensor: Tensor, to: int) -> None:
        """Give a tensor to one rank, which must `recv` it."""
        _check_peer(to, self.rank, self.size)
        dist.send(self._moved(tensor), group=self._group, group_dst=to)

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Fill the tensor with what a rank sends, and return it."""
        _check_peer(source, self.rank, self.size)
        moved = self._moved(tensor)
        dist.recv(moved, group=self._group, group_src=source)
        with torch.no_grad():
            return tensor.copy_(moved)

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Return the tensor of one rank; the others' give shape and type."""
        _check_rank(root, self.size)
        moved = self._moved(tensor)
        dist.broadcast(moved, group=self._group, group_src=root)
        return self._back(moved, tensor)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(self._group)

    def _moved(self, tensor: Tensor) -> Tensor:
        """Return a dense copy where the backend can take it."""
        device = get_torch_device() if self._on_device else tensor.device
        return tensor.detach().to(device, copy=True, memory_format=torch.contiguous_format)

    def _back(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.to(like.device)


def collectives(group: dist.ProcessGroup | None = None) -> Collectives:
    """Return what speaks to the other ranks; without a process group, to oneself."""
    return TorchCollectives(group) if dist.is_initialized() else Alone()


def barrier(group: dist.ProcessGroup | None = None, implementation: str | None = None) -> None:
    """Wait until every rank is here."""
    _check_implementation(implementation)
    collectives(group).barrier()


def all_reduce(obj: T, op: Op | None = None, implementation: str | None = None) -> T:
    """Return the ranks' numbers or tensors reduced to one (summed, unless said)."""
    _check_implementation(implementation)
    reduced: Any
    if isinstance(obj, Tensor):
        reduced = collectives().allreduce(obj, op or "sum")
        return cast(T, reduced)
    if not isinstance(obj, int | float):
        raise BadCollective(f"all_reduce takes numbers and tensors, not {type(obj).__name__}")
    exact = isinstance(obj, int) and op != "mean"
    number = torch.tensor(obj, dtype=torch.int64 if exact else torch.float64)
    reduced = collectives().allreduce(number, op or "sum").item()
    return cast(T, reduced)


def broadcast(obj: T, root: int = 0) -> T:
    """Return one rank's object on every rank: anything that can be pickled."""
    everyone = collectives()
    _check_rank(root, everyone.size)
    if everyone.size == 1:
        return obj
    box: list[Any] = [obj]
    dist.broadcast_object_list(box, src=root)
    found: T = box[0]
    return found


def _mean(total: Tensor, size: int) -> Tensor:
    return total / size


def _share(tensor: Tensor, size: int) -> int:
    rows = tensor.shape[0] if tensor.dim() else 0
    if not tensor.dim() or rows % size:
        raise BadCollective(
            f"the first dimension of {tuple(tensor.shape)} cannot be shared among {size} ranks"
        )
    return rows // size


def _check_op(op: str) -> None:
    if op not in (*OPS, "mean"):
        raise BadCollective(f"no reduction {shorten(op)!r}; one of {', '.join((*OPS, 'mean'))}")


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise BadCollective(f"no rank {rank} in a world of {size}")


def _check_peer(peer: int, rank: int, size: int) -> None:
    if size == 1:
        raise BadCollective("a world of one has nobody to send to or receive from")
    _check_rank(peer, size)
    if peer == rank:
        raise BadCollective(f"rank {rank} cannot send to, or receive from, itself")


def _check_implementation(implementation: str | None) -> None:
    if implementation not in (None, "torch"):
        raise BadCollective(f"no implementation {implementation!r}: ranks speak through torch")
