"""When this rank saves, and what it says with it: the number of a step, a command, the end."""

import math
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from torchloom import __version__
from torchloom.bus.progress_page import StepPhase
from torchloom.checkpoint import open_storage, step_of
from torchloom.checkpoint.errors import BadManifest, Damaged, Incomplete, NotCommitted
from torchloom.checkpoint.local import LocalStorage
from torchloom.checkpoint.storage import Storage
from torchloom.errors import UserError
from torchloom.specs.jobspec import Checkpointing
from torchloom.worker import environment
from torchloom.worker.environment import CHECKPOINT_ROOT_VARIABLE, RESUME_VARIABLE
from torchloom.worker.run import agreement
from torchloom.worker.run.tracked_state import State
from torchloom.worker.threadlet.metrics import losses
from torchloom.worker.threadlet.threadlet import Threadlet

NONE = "1"  # a later life of a run that has saved nothing yet
_USELESS = (Damaged, BadManifest, NotCommitted, Incomplete)
# Copied into the model's tensors; all else is taken as it is, and must not hold on to a file.
_COPIED = ("shared.models.", "own.buffers.")
T = TypeVar("T")
PATIENCE = 120.0  # seconds that the end of a training waits for the last shard
_SOON = 1.0  # seconds of waiting that need no words


class NotShared(UserError):
    """The hosts of a run do not see the same folder for its checkpoints."""

    code = "checkpoints_not_shared"

    def __init__(self, root: str, ranks: list[int]) -> None:
        who = ", ".join(map(str, ranks))
        remedy = "set LOOM_CHECKPOINTS to a folder that all hosts share, or to s3://bucket/folder"
        super().__init__(f"rank 0's checkpoints in {root} cannot be seen by ranks {who}: {remedy}")


class Marked(Protocol):
    """A store in which one can leave a mark for others."""

    root: str

    def mark(self, nonce: str) -> None: ...

    def sees(self, nonce: str) -> bool: ...


def check_shared(storage: Marked, rank: int) -> None:
    """Refuse to go on where ranks of other hosts do not see rank 0's mark; all come together."""
    if not agreement.together() or _is_one_host():
        return
    nonce = agreement.gather(secrets.randbits(62))[0]
    if rank == 0:
        storage.mark(f"{nonce:x}")
    agreement.gather(0)  # it is there now
    seen = agreement.gather(int(storage.sees(f"{nonce:x}")))
    if not all(seen):
        raise NotShared(storage.root, [rank for rank, sees in enumerate(seen) if not sees])


def _is_one_host() -> bool:
    """Report whether all ranks of the group are on this host, by what their launcher said."""
    return environment.text("LOCAL_WORLD_SIZE") == environment.text("WORLD_SIZE")


_ahead: dict[str, Any] = {}  # what is being read, by the root it is in

Report = Callable[[str, dict[str, Any]], None]


class BadResumePlace(UserError):
    """LOOM_RESUME names no checkpoint."""

    code = "bad_resume"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint that all ranks could read."""

    root: str
    place: str
    loaded: Any  # what worker/saving returns


def named(env: Mapping[str, str]) -> str:
    """Return the place that a rank is to go on from; empty for one that begins.

    What this rank hashes of it is read from now on, while the program makes its model.
    """
    place = env.get(RESUME_VARIABLE, "")
    place = "" if place == NONE else place.rstrip("/")
    if place.startswith("/"):
        _begin(place, env)
    return place


def find(place: str, rank: int, world_size: int, report: Report) -> FoundCheckpoint | None:
    """Load the named checkpoint, or an older one; every rank comes here, and all take the same."""
    root, newest = _parsed(place)
    if newest is None or not root:
        raise BadResumePlace(
            f"{RESUME_VARIABLE}={place!r} is no checkpoint: give .../ckpt_step_N, or {NONE}"
        )
    storage = open_storage(root, environment.variables())
    asks = rank == 0 or not agreement.together()  # one looks, for all
    steps = iter([step for step in storage.committed() if step <= newest] if asks else ())
    while (step := agreement.gather(next(steps, -1))[0]) >= 0:
        loaded = _read(storage, step, rank, world_size, report)
        if loaded is not None:
            return FoundCheckpoint(root, storage.place_of(step), loaded)
    return None


def _parsed(place: str) -> tuple[str, int | None]:
    """Return the root that a place is in, and its step."""
    root, _, name = place.rpartition("/")
    return root, step_of(name)


def _begin(place: str, env: Mapping[str, str]) -> None:
    """Begin to read this rank's part of a checkpoint in a folder."""
    from torchloom.worker.saving.loader import Prefetch

    root, step = _parsed(place)
    if root and step is not None:
        _ahead[root] = Prefetch(LocalStorage(root), step, _local_part(env))


def _read(storage: Storage, step: int, rank: int, world_size: int, report: Report) -> Any:
    """Return what all ranks could read; nothing when one of them has found damage."""
    from torchloom.worker.saving import hashed, load

    part = _part(storage)
    ahead = _ahead.pop(storage.root, None)
    held = ahead.take(step, part) if ahead is not None else None
    if held is None:
        held = _useful(partial(hashed, storage, step, part), step, report)
    if not all(agreement.gather(int(held is not None))):
        return None
    loaded = _useful(partial(load, storage, step, rank, world_size, held, _COPIED), step, report)
    return loaded if all(agreement.gather(int(loaded is not None))) else None


def _useful(read: Callable[[], T], step: int, report: Report) -> T | None:
    """Return what can be read of a checkpoint; nothing, and a word about it, when it is damaged."""
    try:
        return read()
    except _USELESS as error:
        report("checkpoint_damaged", {"step": step, "name": _name(error), "why": str(error)})
        sys.stderr.write(f"loom: the checkpoint of step {step} is of no use: {error}\n")
        return None


def _part(storage: Storage) -> tuple[int, int]:
    """Return which part this rank hashes: those of one host read the same files of one cache."""
    if not agreement.together() or not isinstance(storage, LocalStorage):
        return 0, 1
    return _local_part(environment.variables())


def _local_part(env: Mapping[str, str]) -> tuple[int, int]:
    local, count = (env.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_known = local.isdecimal() and count.isdecimal() and int(local) < int(count)
    return (int(local), int(count)) if is_known else (0, 1)


def _name(error: Exception) -> str:
    return str(getattr(error, "name", "") or "")


Capture = Callable[[], tuple[State, State]]  # what all ranks share, and this one's own


class CheckpointSaves:
    """This rank's part in the checkpoints of its run."""

    def __init__(self, threadlet: Threadlet, settings: Checkpointing) -> None:
        self.settings = settings
        self.root = environment.text(CHECKPOINT_ROOT_VARIABLE)
        self.wanted = False  # by the program, at the next boundary
        self.saved = -1  # the step that was saved last, or gone on from
        self.epoch = 0
        self.metrics: dict[str, Any] = {}
        self._threadlet = threadlet
        self._saver: Any = None
        self._unlaid = True  # no room has been made yet
        self._is_behind = False  # something may not be written yet
        self._begun = 0

    @property
    def is_possible(self) -> bool:
        """Report whether there is a place to save in, and somebody to commit it."""
        return bool(self.root and self._threadlet.identity.agent)

    def begin(self, step: int, save: Callable[[int], object], is_alone: bool = False) -> None:
        """Before the first step of this life: say what is wished, and be there to be asked.

        One that comes alone, to others who train, finds what they have agreed on.
        """
        self._begun = step
        if not self.is_possible:
            self._excuse()
            return
        if self.settings.enabled and not is_alone:
            check_shared(
                open_storage(self.root, environment.variables()), self._threadlet.identity.rank
            )
        if self._threadlet.identity.rank == 0 and not is_alone:
            self._threadlet.event("checkpointing", self._shown())
        self._threadlet.acts.savers.append(save)
        _listen(self._threadlet)

    def state(self) -> State:
        """Return what a newcomer must know to save when the others do."""
        return {"begun": self._begun, "saved": self.saved}

    def rejoin(self, step: int, generation: int, told: State | None) -> None:
        """Go on at a step in another generation, as a peer told if it has.

        What was saved at this very step may lack the part of one that is gone: it is saved again.
        """
        if told is not None:
            self._begun, self.saved = int(told["begun"]), int(told["saved"])
        if self.saved == step:
            self.saved, self.wanted = -1, True
        if self._saver is not None:
            self._saver.move_on(generation)

    def due(self, step: int) -> str:
        """Return why a checkpoint is to be made before this step, if so."""
        if self.wanted:
            return "program"
        every = self.settings.every_n_steps if self.settings.enabled else None
        return "every_n_steps" if every and step > self._begun and step % every == 0 else ""

    def prepare(self, capture: Capture) -> None:
        """Once a step was applied, make room for all there is to save: the first one stalls less.

        Optimizers have no state before that.
        """
        if self._unlaid and self.settings.enabled and self.is_possible:
            self._unlaid = False
            self._opened().prepare(*capture())

    def save(self, step: int, trigger: str, capture: Capture, facts: Mapping[str, Any]) -> None:
        """Hand over the state before a step; never twice for one."""
        self.wanted = False
        if step == self.saved or not self.is_possible:
            return
        self.saved, self._unlaid = step, False
        self._enter(StepPhase.CHECKPOINT)
        shared, own = capture()
        told = {"epoch": self.epoch, **_strategy(), **facts, "rng_state": True}
        numbers = _numbers(self.metrics)
        told |= {"versions": versions(), "metrics": numbers, "trigger": trigger}
        told["not_finite"] = any(not math.isfinite(numbers[name]) for name in losses(numbers))
        self._opened().save(step, shared, own, told)
        self._is_behind = True
        self._enter(StepPhase.STEP)

    def finish(self) -> None:
        """Wait for what is being written, and say so if it takes a while."""
        if not self._is_behind or self._saver.wait(_SOON):
            self._is_behind = False
            return
        rank, most = self._threadlet.identity.rank, f"{PATIENCE:.0f} s at most"
        sys.stderr.write(f"loom: rank {rank} waits for its shard of step {self.saved}, {most}\n")
        if not self._written(time.monotonic() + PATIENCE):
            sys.stderr.write(f"loom: the checkpoint of step {self.saved} is not complete\n")
        self._is_behind = False
        self._enter(StepPhase.STEP)

    def _written(self, deadline: float) -> bool:
        """Wait, and show that it is no hang; what was given up is not waited for."""
        while (now := time.monotonic()) < deadline:
            self._enter(StepPhase.CHECKPOINT)
            if self._saver.wait(_SOON):
                return True
            if time.monotonic() - now < _SOON / 2:
                return False
        return False

    def _enter(self, phase: StepPhase) -> None:
        self._threadlet.page.enter(phase, time.monotonic_ns())

    def _opened(self) -> Any:
        if self._saver is None:
            from torchloom.worker.saving import Saver

            identity = self._threadlet.identity
            self._saver = Saver(
                open_storage(self.root, environment.variables()),
                rank=identity.rank,
                world_size=identity.world_size,
                generation=identity.generation,
                attempt=_attempt(identity.generation),
                tell=self._threadlet.event,
            )
        return self._saver

    def _shown(self) -> dict[str, Any]:
        settings = self.settings
        every = settings.every_n_seconds if settings.enabled else None
        kept = {"keep_last": settings.keep_last, "keep_every": settings.keep_every}
        best = {"best": settings.best, "mode": str(settings.mode)}
        return {"every_n_seconds": every, **kept, **best}

    def _excuse(self) -> None:
        if self.settings.enabled and self._threadlet.identity.rank == 0:
            why = (
                f"{CHECKPOINT_ROOT_VARIABLE} is not set"
                if not self.root
                else "there is no agent to commit"
            )
            sys.stderr.write(f"loom: no checkpoints are made: {why}; start it with `loom run`\n")


def versions() -> dict[str, str]:
    """Return what a training was computed with."""
    return {
        "torchloom": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _strategy() -> dict[str, str]:
    return {
        "strategy": "data_parallel" if agreement.together() else "single",
        "backend": agreement.backend(),
    }


def _attempt(generation: int) -> int:
    text = environment.text(environment.ATTEMPT_VARIABLE)
    return int(text) if text.isdecimal() else generation


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the last logged values that are numbers; tensors are read here, and only here."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # a text, a vector
            continue
    return found


def _listen(threadlet: Threadlet) -> None:
    """Have SIGUSR1 ask for a checkpoint, unless it means something else to the program."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        said = {"why": "SIGUSR1"}
        signal.signal(signal.SIGUSR1, lambda *_: threadlet.event("checkpoint_wanted", dict(said)))
