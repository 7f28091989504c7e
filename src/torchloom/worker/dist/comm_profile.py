"""Time every collective of chosen steps, whatever engine calls it: DDP, FSDP, pipelines, programs.

torch's own profiler records them, where the backend runs them; this module turns what it recorded
into metrics.
"""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile

from torchloom.worker import environment

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

