"""When this rank saves, and what it says with it: the number of a step, a command, the end."""

import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchloom import __version__
from torchloom.bus.page import Phase
from torchloom.checkpoint import open_storage
from torchloom.specs.jobspec import Checkpointing
from torchloom.worker.running import peers
from torchloom.worker.running.sharing import check_shared
from torchloom.worker.running.things import State
from torchloom.worker.threadlet.notes import losses
from torchloom.worker.threadlet.threadlet import Threadlet

ROOT_VARIABLE = "LOOM_CHECKPOINT_ROOT"
PATIENCE = 120.0  # seconds that the end of a training waits for the last shard
_SOON = 1.0  # seconds of waiting that need no words

Capture = Callable[[], tuple[State, State]]  # what all ranks share, and this one's own


class Saves:
    """This rank's part in the checkpoints of its run."""

    def __init__(self, threadlet: Threadlet, wishes: Checkpointing) -> None:
        self.wishes = wishes
        self.root = os.environ.get(ROOT_VARIABLE, "")
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
        """Tell whether there is a place to save in, and somebody to commit it."""
        return bool(self.root and self._threadlet.seat.agent)

    def begin(self, step: int, save: Callable[[int], object], is_alone: bool = False) -> None:
        """Before the first step of this life: say what is wished, and be there to be asked.

        One that comes alone, to others who train, finds what they have agreed on.
        """
        self._begun = step
        if not self.is_possible:
            self._excuse()
            return
        if self.wishes.enabled and not is_alone:
            check_shared(open_storage(self.root, os.environ), self._threadlet.seat.rank)
        if self._threadlet.seat.rank == 0 and not is_alone:
            self._threadlet.event("checkpointing", self._told())
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
        every = self.wishes.every_n_steps if self.wishes.enabled else None
        return "every_n_steps" if every and step > self._begun and step % every == 0 else ""

    def prepare(self, capture: Capture) -> None:
        """Once a step was applied, make room for all there is to save: the first one stalls less.

        Optimizers have no state before that.
        """
        if self._unlaid and self.wishes.enabled and self.is_possible:
            self._unlaid = False
            self._opened().prepare(*capture())

    def save(self, step: int, trigger: str, capture: Capture, facts: Mapping[str, Any]) -> None:
        """Hand over the state before a step; never twice for one."""
        self.wanted = False
        if step == self.saved or not self.is_possible:
            return
        self.saved, self._unlaid = step, False
        self._enter(Phase.CHECKPOINT)
        shared, own = capture()
        told = {"epoch": self.epoch, **_strategy(), **facts, "rng_state": True}
        numbers = _numbers(self.metrics)
        told |= {"versions": versions(), "metrics": numbers, "trigger": trigger}
        told["not_finite"] = any(not math.isfinite(numbers[name]) for name in losses(numbers))
        self._opened().save(step, shared, own, told)
        self._is_behind = True
        self._enter(Phase.STEP)

    def finish(self) -> None:
        """Wait for what is being written, and say so if it takes a while."""
        if not self._is_behind or self._saver.wait(_SOON):
            self._is_behind = False
            return
        rank, most = self._threadlet.seat.rank, f"{PATIENCE:.0f} s at most"
        sys.stderr.write(f"loom: rank {rank} waits for its shard of step {self.saved}, {most}\n")
        if not self._written(time.monotonic() + PATIENCE):
            sys.stderr.write(f"loom: the checkpoint of step {self.saved} is not complete\n")
        self._is_behind = False
        self._enter(Phase.STEP)

    def _written(self, deadline: float) -> bool:
        """Wait, and show that it is no hang; what was given up is not waited for."""
        while (now := time.monotonic()) < deadline:
            self._enter(Phase.CHECKPOINT)
            if self._saver.wait(_SOON):
                return True
            if time.monotonic() - now < _SOON / 2:
                return False
        return False

    def _enter(self, phase: Phase) -> None:
        self._threadlet.page.enter(phase, time.monotonic_ns())

    def _opened(self) -> Any:
        if self._saver is None:
            from torchloom.worker.saving import Saver

            seat = self._threadlet.seat
            self._saver = Saver(
                open_storage(self.root, os.environ),
                rank=seat.rank,
                world_size=seat.world_size,
                generation=seat.generation,
                attempt=_attempt(seat.generation),
                tell=self._threadlet.event,
            )
        return self._saver

    def _told(self) -> dict[str, Any]:
        wishes = self.wishes
        every = wishes.every_n_seconds if wishes.enabled else None
        kept = {"keep_last": wishes.keep_last, "keep_every": wishes.keep_every}
        best = {"best": wishes.best, "mode": str(wishes.mode)}
        return {"every_n_seconds": every, **kept, **best}

    def _excuse(self) -> None:
        if self.wishes.enabled and self._threadlet.seat.rank == 0:
            why = f"{ROOT_VARIABLE} is not set" if not self.root else "there is no agent to commit"
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
        "strategy": "data_parallel" if peers.together() else "single",
        "backend": peers.backend(),
    }


def _attempt(generation: int) -> int:
    text = os.environ.get("LOOM_ATTEMPT", "")
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
