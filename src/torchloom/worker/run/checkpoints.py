"""When a rank saves its part of a checkpoint, and which checkpoint it resumes from."""

import contextlib
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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

if TYPE_CHECKING:
    from torchloom.worker.run.parts import Parts
    from torchloom.worker.saving import Reader
    from torchloom.worker.saving.saver import More

NONE = "1"  # a restarted run that has saved nothing yet
_USELESS = (Damaged, BadManifest, NotCommitted, Incomplete)
# Copied into the model's tensors; all else is used as it is, and must not keep a file mapped.
_COPIED = ("shared.models.", "own.buffers.")
T = TypeVar("T")
PATIENCE = 120.0  # seconds to wait for the last shard at the end
_SOON = 1.0  # seconds of waiting without a message


class NotShared(UserError):
    """The hosts of a run do not see the same folder for its checkpoints."""

    code = "checkpoints_not_shared"

    def __init__(self, root: str, ranks: list[int]) -> None:
        who = ", ".join(map(str, ranks))
        remedy = "set LOOM_CHECKPOINTS to a folder that all hosts share, or to s3://bucket/folder"
        super().__init__(f"rank 0's checkpoints in {root} cannot be seen by ranks {who}: {remedy}")


class Marked(Protocol):
    """A store in which ranks can leave marks for each other."""

    root: str

    def mark(self, nonce: str) -> None: ...

    def sees(self, nonce: str) -> bool: ...


def check_shared(storage: Marked, rank: int) -> None:
    """Raise NotShared if a rank does not see rank 0's mark in the store. A collective call."""
    if not agreement.together() or _is_one_host():
        return
    nonce = agreement.gather(secrets.randbits(62))[0]
    if rank == 0:
        storage.mark(f"{nonce:x}")
    agreement.gather(0)  # rank 0 has written it
    seen = agreement.gather(int(storage.sees(f"{nonce:x}")))
    if not all(seen):
        raise NotShared(storage.root, [rank for rank, sees in enumerate(seen) if not sees])


def _is_one_host() -> bool:
    """Tell whether all ranks are on this host, by the launcher's variables."""
    return environment.text("LOCAL_WORLD_SIZE") == environment.text("WORLD_SIZE")


_ahead: dict[str, Any] = {}  # checkpoints being read ahead, by their root

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
    """Return the checkpoint to resume from; empty for a new run.

    This rank's part of it is read ahead in a thread, while the program builds its model.
    """
    place = env.get(RESUME_VARIABLE, "")
    place = "" if place == NONE else place.rstrip("/")
    if place.startswith("/"):
        _begin(place, env)
    return place


def find(
    place: str,
    rank: int,
    world_size: int,
    report: Report,
    mesh: Mapping[str, int] | None = None,
) -> FoundCheckpoint | None:
    """Load the named checkpoint, or an older one if it is damaged. A collective call."""
    from torchloom.worker.saving import Reader

    root, newest = parsed(place)
    if newest is None or not root:
        raise BadResumePlace(
            f"{RESUME_VARIABLE}={place!r} is not a checkpoint: set it to .../ckpt_step_N, or {NONE}"
        )
    storage = open_storage(root, environment.variables())
    asks = rank == 0 or not agreement.together()  # one rank lists the checkpoints
    reader = Reader(rank, world_size, mesh)
    steps = iter(_own_steps(storage, newest) if asks else ())
    while (step := agreement.gather(next(steps, -1))[0]) >= 0:
        loaded = _read(storage, step, reader, report)
        if loaded is not None:
            return FoundCheckpoint(root, storage.place_of(step), loaded)
    return None


def _own_steps(storage: Storage, newest: int) -> list[int]:
    """Return the steps up to this one, newest first, without those that a trainer saved."""
    return [step for step in storage.committed() if step <= newest and _is_own(storage, step)]


def _is_own(storage: Storage, step: int) -> bool:
    with contextlib.suppress(*_USELESS):
        return storage.manifest(step).trainer is None
    return True  # it is read, and reported as damaged


def parsed(place: str) -> tuple[str, int | None]:
    """Return the root and the step of a checkpoint's path."""
    root, _, name = place.rpartition("/")
    return root, step_of(name)


def _begin(place: str, env: Mapping[str, str]) -> None:
    """Begin to read ahead this rank's part of a checkpoint."""
    from torchloom.worker.saving.loader import Prefetch

    root, step = parsed(place)
    if root and step is not None:
        _ahead[root] = Prefetch(LocalStorage(root), step, local_part(env))


def _read(storage: Storage, step: int, reader: "Reader", report: Report) -> Any:
    """Return the checkpoint if all ranks could read it, else None."""
    from torchloom.worker.saving import hashed, load

    part = _part(storage)
    ahead = _ahead.pop(storage.root, None)
    held = ahead.take(step, part) if ahead is not None else None
    if held is None:
        held = _useful(partial(hashed, storage, step, part, reader), step, report)
    if not all(agreement.gather(int(held is not None))):
        return None
    loaded = _useful(partial(load, storage, step, reader, held, _COPIED), step, report)
    return loaded if all(agreement.gather(int(loaded is not None))) else None


def _useful(read: Callable[[], T], step: int, report: Report) -> T | None:
    """Return the result of `read`; report a damaged checkpoint and return None."""
    try:
        return read()
    except _USELESS as error:
        report("checkpoint_damaged", {"step": step, "name": _name(error), "why": str(error)})
        sys.stderr.write(f"loom: the checkpoint of step {step} cannot be used: {error}\n")
        return None


def _part(storage: Storage) -> tuple[int, int]:
    """Return the part that this rank hashes: ranks of one host divide the files."""
    if not agreement.together() or not isinstance(storage, LocalStorage):
        return 0, 1
    return local_part(environment.variables())


def local_part(env: Mapping[str, str]) -> tuple[int, int]:
    local, count = (env.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_known = local.isdecimal() and count.isdecimal() and int(local) < int(count)
    return (int(local), int(count)) if is_known else (0, 1)


def _name(error: Exception) -> str:
    return str(getattr(error, "name", "") or "")


# The state of all ranks, that of this one, and its parts of tensors that the ranks divide.
Capture = Callable[[], tuple[State, State, "Parts | None"]]


class CheckpointSaves:
    """This rank's part in the checkpoints of its run."""

    def __init__(self, threadlet: Threadlet, settings: Checkpointing) -> None:
        self.settings = settings
        self.root = environment.text(CHECKPOINT_ROOT_VARIABLE)
        self.wanted = False  # requested by the program for the next boundary
        self.saved = -1  # the last step that was saved or resumed from
        self.epoch = 0
        self.metrics: dict[str, Any] = {}
        self._threadlet = threadlet
        self._saver: Any = None
        self._unlaid = True  # staging memory is not allocated yet
        self._is_behind = False  # a shard may not be written yet
        self._begun = 0

    @property
    def is_possible(self) -> bool:
        """Tell whether there are a store and an agent, which checkpoints need."""
        return bool(self.root and self._threadlet.identity.agent)

    def begin(self, step: int, save: Callable[[int], object], is_alone: bool = False) -> None:
        """Before the first step: report the settings, and accept requests for checkpoints.

        A rank that joins a running training alone skips what the ranks check together.
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
            self._threadlet.event("checkpointing", self._facts())
        self._threadlet.acts.savers.append(save)
        handle_signal(self._threadlet)

    def state(self) -> State:
        """Return what a joining rank needs to save at the same steps as the others."""
        return {"begun": self._begun, "saved": self.saved}

    def rejoin(self, step: int, generation: int, state: State | None) -> None:
        """Continue at a step of another generation, with a peer's `state()` if it sent one.

        A checkpoint of this very step may lack the part of a lost rank: it is saved again.
        """
        if state is not None:
            self._begun, self.saved = int(state["begun"]), int(state["saved"])
        if self.saved == step:
            self.saved, self.wanted = -1, True
        if self._saver is not None:
            self._saver.move_on(generation)

    def due(self, step: int) -> str:
        """Return the trigger of a checkpoint that is due before this step, else an empty text."""
        if self.wanted:
            return "program"
        every = self.settings.every_n_steps if self.settings.enabled else None
        return "every_n_steps" if every and step > self._begun and step % every == 0 else ""

    def prepare(self, capture: Capture) -> None:
        """Allocate staging memory after the first step, so that the first save stalls less.

        Optimizers have no state before that.
        """
        if self._unlaid and self.settings.enabled and self.is_possible:
            self._unlaid = False
            self._opened().prepare(*capture())

    def save(
        self,
        step: int,
        trigger: str,
        capture: Capture,
        facts: Mapping[str, Any],
        more: "More | None" = None,
    ) -> None:
        """Save the state before a step, at most once per step; `more` is as in `Saver.save`."""
        self.wanted = False
        if step == self.saved or not self.is_possible:
            return
        self.saved, self._unlaid = step, False
        self._enter(StepPhase.CHECKPOINT)
        shared, own, parts = capture()
        about = {"epoch": self.epoch, **_strategy(), **facts, "rng_state": True}
        numbers = _numbers(self.metrics)
        about |= {"metrics": numbers, "trigger": trigger}
        about["versions"] = versions() | about.get("versions", {})
        about["not_finite"] = any(not math.isfinite(numbers[name]) for name in losses(numbers))
        self._opened().save(step, shared, own, about, more, parts)
        self._is_behind = True
        self._enter(StepPhase.STEP)

    def finish(self) -> None:
        """Wait until the last shard is written; print a line if that takes a while."""
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
        """Wait while showing progress; False at the deadline, or if the write was given up."""
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
                report=self._threadlet.event,
            )
        return self._saver

    def _facts(self) -> dict[str, Any]:
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
            sys.stderr.write(
                f"loom: no checkpoints are saved: {why}; start the program with `loom run`\n"
            )


def versions() -> dict[str, str]:
    """Return the versions of torchloom, torch and Python."""
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
    """Return the last logged values that are numbers; tensors are read only here."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # a text, a vector
            continue
    return found


def handle_signal(threadlet: Threadlet) -> None:
    """Make SIGUSR1 request a checkpoint, unless the program handles that signal itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        facts = {"why": "SIGUSR1"}
        signal.signal(signal.SIGUSR1, lambda *_: threadlet.event("checkpoint_wanted", dict(facts)))
