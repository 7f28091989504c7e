"""Collective operations over gloo, NCCL or MPI by torch.distributed, or for a single process.

An average is a sum that is divided: not every backend has one of its own, and gloo's once was a sum.
Collectives of chosen steps are timed by torch's own profiler, which records them where the backend
runs them, whichever engine calls them: DDP, FSDP, tensor parallelism, pipelines or the program.
"""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler import profile

from torchloom.errors import UserError, shorten
from torchloom.worker import environment
from torchloom.worker.dist.device import get_torch_device

Op = Literal["sum", "mean", "min", "max", "prod"]
T = TypeVar("T")

OPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}
_NEEDS_DEVICE = ("nccl", "xccl", "ccl")  # backends that take no CPU tensors


class BadCollective(UserError):
    """An invalid operation, shape or peer."""

    code = "bad_collective"


class Collectives(Protocol):
    """Collective operations. They return new tensors; only `recv` changes its argument."""

    backend: str  # of torch, or `single`
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
    """The collectives of a single process, which needs no process group."""

    backend = "single"
    rank = 0
    size = 1

    def allreduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return a copy."""
        _check_op(op)
        return tensor.detach().clone()

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        """Return a list with a copy."""
        return [tensor.detach().clone()]

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Return a copy."""
        _check_op(op)
        _share(tensor, 1)
        return tensor.detach().clone()

    def send(self, tensor: Tensor, to: int) -> None:
        """Raise BadCollective: there are no other ranks."""
        _check_peer(to, self.rank, self.size)

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Raise BadCollective: there are no other ranks."""
        _check_peer(source, self.rank, self.size)
        return tensor

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Return a copy."""
        _check_rank(root, self.size)
        return tensor.detach().clone()

    def barrier(self) -> None:
        """Return at once."""


class TorchCollectives:
    """The collectives of a process group of torch."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.backend = str(dist.get_backend(group))
        self._on_device = self.backend in _NEEDS_DEVICE

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
        """Return a contiguous copy on a device that the backend accepts."""
        device = get_torch_device() if self._on_device else tensor.device
        return tensor.detach().to(device, copy=True, memory_format=torch.contiguous_format)

    def _back(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.to(like.device)


def collectives(group: dist.ProcessGroup | None = None) -> Collectives:
    """Return the collectives of a process group, or of this process alone without one."""
    return TorchCollectives(group) if dist.is_initialized() else Alone()


def barrier(group: dist.ProcessGroup | None = None, implementation: str | None = None) -> None:
    """Wait until every rank has called it. Returns at once without a process group."""
    _check_implementation(implementation)
    collectives(group).barrier()


def all_reduce(obj: T, op: Op | None = None, implementation: str | None = None) -> T:
    """Return the numbers or tensors of all ranks, reduced to one on every rank.

    Args:
        obj: A number or a tensor; a tensor is not changed.
        op: `sum` (the default), `mean`, `min`, `max` or `prod`.
        implementation: `torch` or None; accepted for compatibility.

    Raises:
        BadCollective: `obj` is neither a number nor a tensor, or `op` is unknown.

    Example:
        >>> mean_loss = all_reduce(loss.item(), "mean")
    """
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
    """Return the object of rank `root` on every rank; it must be picklable."""
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
        raise BadCollective("a single process cannot send to, or receive from, other ranks")
    _check_rank(peer, size)
    if peer == rank:
        raise BadCollective(f"rank {rank} cannot send to, or receive from, itself")


def _check_implementation(implementation: str | None) -> None:
    if implementation not in (None, "torch"):
        raise BadCollective(f"no implementation {implementation!r}: only torch is supported")


# Time of collectives.

PREFIX = "comm"
_NAME = re.compile(r"(gloo|nccl|mpi|ucc|xccl):_?([a-z_]+)$")
_KERNEL = re.compile(r"ncclDevKernel_([A-Za-z]+?)_.*?((?:RING|TREE|NVLS|COLLNET|PAT)\w*)\(")
_BYTES = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "short int": 2,
    "short": 2,
}
_QUIET = "99"  # kineto writes two lines on standard error for each profile otherwise


class Log(Protocol):
    """Where the metrics of a step go, as `Run.add`."""

    def __call__(self, step: int, values: dict[str, Any], at: int | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective, as it was recorded: what ran it, when, and with how much."""

    algorithm: str  # what the backend calls it, such as gloo/all_reduce
    size: int  # bytes of this rank's input
    start: int  # nanoseconds
    end: int


def every_of(submitted: Mapping[str, Any]) -> int:
    """Return how many steps lie between two that are timed; 0: none is.

    The variable LOOM_COMM_TIMING takes precedence over `distributed.comm_timing` of the job.
    """
    text = environment.text(environment.COMM_TIMING_VARIABLE)
    if text.isdecimal():
        return int(text)
    if text:
        name = environment.COMM_TIMING_VARIABLE
        sys.stderr.write(f"loom: {name}={text!r} is ignored; it must be a number of steps\n")
    return int(submitted.get("comm_timing") or 0)


class CollectiveProfile:
    """Profiles the collectives of every Nth step and logs them as metrics of that step."""

    def __init__(self, every: int, log: Log) -> None:
        self._every = every
        self._log = log
        self._running: Any = None  # a profile of torch
        self._step = 0

    def reach(self, step: int) -> None:
        """End the profile of the step before, and begin one if this step is timed.

        A program that profiles itself is left alone: there is one profiler in a process.
        """
        self.stop()
        if step == 0 or step % self._every or torch._C._autograd._profiler_enabled():
            return
        environment.export({"KINETO_LOG_LEVEL": environment.text("KINETO_LOG_LEVEL", _QUIET)})
        device = "cuda" if torch.cuda.is_available() else None
        self._running = profile(use_kineto=True, use_device=device, record_shapes=True)
        self._step = step
        self._running.__enter__()

    def stop(self) -> None:
        """End a profile that is running, and log what it recorded."""
        running, self._running = self._running, None
        if running is None:
            return
        running.__exit__(None, None, None)
        if running.kineto_results is not None:
            values = metrics_of(calls_of(running.kineto_results.events()))
            self._log(self._step, dict(values), self._step)


def calls_of(events: Iterable[Any]) -> list[CollectiveCall]:
    """Return the collectives among the events of a profile.

    On the host a backend's event lasts as long as the collective. NCCL's lasts until it is
    enqueued; its kernels, whose names have the algorithm, last as long as they run, and are
    counted without bytes.
    """
    found = []
    for event in events:
        size = 0
        if host := _NAME.match(event.name()):
            algorithm = "/".join(host.groups())
            size = sum(map(_size, event.shapes(), event.dtypes()))
        elif kernel := _KERNEL.match(event.name()):
            algorithm = "nccl/" + "_".join(kernel.groups()).lower()
        else:
            continue
        begun = event.start_ns()
        found.append(CollectiveCall(algorithm, size, begun, begun + event.duration_ns()))
    return found


def metrics_of(calls: Iterable[CollectiveCall]) -> dict[str, float]:
    """Return seconds and bytes by algorithm, and of all: `comm/seconds` counts no moment twice."""
    calls = sorted(calls, key=lambda each: each.start)
    rows: dict[str, float] = defaultdict(float)
    covered = until = 0
    for each in calls:
        name = f"{PREFIX}/{each.algorithm}"
        rows[f"{name}/seconds"] += (each.end - each.start) / 1e9
        rows[f"{name}/bytes"] += each.size
        rows[f"{name}/calls"] += 1
        covered += max(0, each.end - max(each.start, until))
        until = max(until, each.end)
    rows[f"{PREFIX}/seconds"] = covered / 1e9
    rows[f"{PREFIX}/bytes"] = sum(each.size for each in calls)
    return dict(rows)


def _size(shape: Any, dtype: str) -> int:
    """Return the bytes of one argument; lists of tensors have one shape each."""
    if shape and isinstance(shape[0], list):
        return sum(_size(each, dtype) for each in shape)
    return math.prod(shape) * _BYTES.get(dtype, 1) if shape else 0

