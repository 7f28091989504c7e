"""A rank's own book of its steps, for whoever judges a training without asking anything of ours.

One file a rank, one line a step; a line is written whole or not at all, and none is ever changed.
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
from torchloom.worker.run.sources import BatchSource
from torchloom.worker.run.tracked_state import TrackedState
from torchloom.worker.threadlet.threadlet import Threadlet

_NAMED = "step-digests"  # a file of the run's folder: which log a command has begun
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class NoRun(Failure):
    """The log of a run lies in its folder, which is not there."""

    code = "no_run_folder"


class NoStepLog:
    """Nobody wants to read one."""

    def note(self, step: int, things: TrackedState, source: BatchSource | None) -> None:
        """Write nothing."""


class StepLog:
    """One life's part of its rank's book.

    A step is `applied` when this life has come from the boundary before it to the one behind it,
    in one generation. What a generation begins with is `joined`: the state behind that step was
    this life's own, or was given to it.
    """

    def __init__(self, folder: Path, threadlet: Threadlet) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._threadlet = threadlet
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"rank_{threadlet.identity.rank}.jsonl", flags, 0o600)
        self._at = (-1, -1)  # generation and step of the boundary that was noted last
        self._next: str | None = None  # what the step behind it is trained on

    def note(self, step: int, things: TrackedState, source: BatchSource | None) -> None:
        """At the boundary before a step: write down the one that is done."""
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
    """Return a rank's book, where a command has begun one or the environment names a folder."""
    run = _run(threadlet)
    try:
        return StepLog(run / (run / _NAMED).read_text(), threadlet)
    except FileNotFoundError:  # no command has, or it was ended just now
        folder = environment.text(environment.STEP_LOG_VARIABLE)
        return StepLog(Path(folder), threadlet) if folder else NoStepLog()


def switched(threadlet: Threadlet, name: str) -> StepLog | NoStepLog:
    """Begin a book in a folder of the run, or end it; later lives of the ranks do the same."""
    run = _run(threadlet)
    if name and not (run.is_dir() and _NAME.fullmatch(name)):
        raise NoRun(f"there is no folder {run} for a log {name!r}; set LOOM_HOME as the launch has")
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
    """Return what parameters, optimizers and buffers are; the last may be a rank's own."""
    modules = [model.module for model in things.models.values()]
    optimizers = (one for one in things.tracked.values() if isinstance(one, Optimizer))
    return {
        "digest": _whole(tensor for one in modules for tensor in one.parameters()),
        "state": _whole(tensor for one in optimizers for tensor in _kept(one)),
        "own": _whole(tensor for one in modules for tensor in one.buffers()),
    }


def _kept(optimizer: Optimizer) -> Iterable[Tensor]:
    """Return the tensors of an optimizer, in an order that is always the same."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    states = (optimizer.state.get(one, {}) for one in parameters)
    found = (state[name] for state in states for name in sorted(state))
    return (one for one in found if isinstance(one, Tensor))


def _whole(tensors: Iterable[Tensor]) -> str:
    return _short("".join(map(digest, tensors)).encode())


def _samples(source: BatchSource | None) -> str | None:
    """Return what the next batch is made of, where the run deals it."""
    ask: Any = getattr(source, "samples", None)
    return None if ask is None else _short(json.dumps(ask()).encode())


def _rng_digest() -> str:
    """Return where the generators are that programs draw from."""
    numpy = sys.modules.get("numpy")
    drawn = torch.get_rng_state().numpy().tobytes()
    return _short(drawn + (b"" if numpy is None else repr(numpy.random.get_state()).encode()))


def _short(whole: bytes) -> str:
    return hashlib.blake2b(whole, digest_size=16).hexdigest()
