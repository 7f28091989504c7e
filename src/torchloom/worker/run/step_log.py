"""The step digest log of a rank, by which an independent checker judges a training.

Each rank has one append-only file with one JSON line per step; lines are written atomically.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchloom import settings
from torchloom.errors import Failure
from torchloom.worker import environment
from torchloom.worker.run.digests import digest
from torchloom.worker.run.loader import BatchSource
from torchloom.worker.run.parts import settle
from torchloom.worker.run.tracked_state import TrackedState
from torchloom.worker.threadlet.threadlet import Threadlet

_NAMED = "step-digests"  # a file in the run folder that names the log a command began
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class NoRun(Failure):
    """The run folder, where the log would be, does not exist."""

    code = "no_run_folder"


class NoStepLog:
    """The log of a run that keeps none."""

    def note(self, step: int, things: TrackedState, source: BatchSource | None) -> None:
        """Write nothing."""


class StepLog:
    """The lines that one process writes to the log of its rank.

    A step is `applied` if this process passed the boundaries before and after it in one generation.
    The first boundary of a generation is `joined`: the process had that state, or received it.
    """

    def __init__(self, folder: Path, threadlet: Threadlet) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._threadlet = threadlet
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"rank_{threadlet.identity.rank}.jsonl", flags, 0o600)
        self._at = (-1, -1)  # generation and step of the last boundary written
        self._next: str | None = None  # samples of the step after it

    def note(self, step: int, things: TrackedState, source: BatchSource | None) -> None:
        """At the boundary before a step: write the line of the step before it."""
        identity = self._threadlet.identity
        before, self._at = self._at, (identity.generation, step)
        if before == self._at:
            return
        is_applied = before == (identity.generation, step - 1)
        samples, self._next = self._next if is_applied else None, _samples(source)
        line = {
            "attempt": identity.attempt,
            "generation": identity.generation,
            "incarnation": identity.incarnation,
            "pid": identity.pid,
            "started": identity.started,
            "kind": "applied" if is_applied else "joined",
            "step": step - 1,
            **_bits(things),
            "samples": samples,
            "chance": _rng_digest() if is_applied else None,
            "time": time.time(),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


def opened(threadlet: Threadlet) -> StepLog | NoStepLog:
    """Return the log that a command began or the environment names, if there is one."""
    run = _run(threadlet)
    try:
        return StepLog(run / (run / _NAMED).read_text(), threadlet)
    except FileNotFoundError:  # no command began one, or one was ended just now
        folder = environment.text(environment.STEP_LOG_VARIABLE)
        return StepLog(Path(folder), threadlet) if folder else NoStepLog()


def switched(threadlet: Threadlet, name: str) -> StepLog | NoStepLog:
    """Begin a log in the run folder, or end it; later processes of the ranks follow."""
    run = _run(threadlet)
    if name and not (run.is_dir() and _NAME.fullmatch(name)):
        raise NoRun(
            f"the folder {run} does not exist for a log {name!r}; set LOOM_HOME as the launch has"
        )
    if name:
        partial = run / f"{_NAMED}.{threadlet.identity.rank}"
        partial.write_text(name)
        partial.replace(run / _NAMED)
    else:
        (run / _NAMED).unlink(missing_ok=True)
    return opened(threadlet)


def _run(threadlet: Threadlet) -> Path:
    return settings.runs_dir() / threadlet.identity.job


def _bits(things: TrackedState) -> dict[str, str]:
    """Return digests of parameters, optimizers and buffers; the last may differ between ranks."""
    modules = list(things.modules().values())
    settle(modules)
    optimizers = (one for one in things.tracked.values() if isinstance(one, Optimizer))
    return {
        "digest": _whole(tensor for one in modules for tensor in one.parameters()),
        "state": _whole(tensor for one in optimizers for tensor in _kept(one)),
        "own": _whole(tensor for one in modules for tensor in one.buffers()),
    }


def _kept(optimizer: Optimizer) -> Iterable[Tensor]:
    """Return the tensors of an optimizer, in a fixed order."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    states = (optimizer.state.get(one, {}) for one in parameters)
    found = (state[name] for state in states for name in sorted(state))
    return (one for one in found if isinstance(one, Tensor))


def _whole(tensors: Iterable[Tensor]) -> str:
    return _short("".join(map(digest, tensors)).encode())


def _samples(source: BatchSource | None) -> str | None:
    """Return a digest of the samples of the next batch, if the run deals them."""
    ask: Any = getattr(source, "samples", None)
    return None if ask is None else _short(json.dumps(ask()).encode())


def _rng_digest() -> str:
    """Return a digest of the RNG state of torch and numpy."""
    numpy = sys.modules.get("numpy")
    drawn = torch.get_rng_state().numpy().tobytes()
    return _short(drawn + (b"" if numpy is None else repr(numpy.random.get_state()).encode()))


def _short(whole: bytes) -> str:
    return hashlib.blake2b(whole, digest_size=16).hexdigest()
