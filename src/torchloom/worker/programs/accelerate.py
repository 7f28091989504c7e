"""Accelerate: what programs log, and how they save and stop at one step.

The loop is the program's own, and so are its counters and its position in the data. A checkpoint is
saved between two batches, when all is done that belongs to a step. It is loaded by the program:
`accelerator.load_state()` without a folder loads the newest checkpoint of the run.
"""

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torchloom.bus.progress_page import StepPhase
from torchloom.worker.environment import RESUME_VARIABLE, text
from torchloom.worker.programs.checkpoints import (
    FoundTrainerCheckpoint,
    TrainerCheckpoints,
    TrainerSave,
)
from torchloom.worker.programs.program import ObservedProgram, is_number, last_step
from torchloom.worker.recovery import standin
from torchloom.worker.run.checkpoints import NONE

_SOURCE = "accelerate"
_LOADERS = ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader")
_FOLDER = "checkpoints"  # in the project's folder, if the program has not saved elsewhere
_COPIES = 3  # of the weights in a checkpoint: themselves, and what most optimizers keep
_OTHERS = "transformers."  # whose Trainer has an Accelerator for itself
_OUTER = 12  # callers among which that Trainer is
_OWN = "the program restores its own counters and its position in the data"
_UNLOADED = (
    "the program has not loaded its checkpoint of step {step} in {path}:"
    " call accelerator.load_state(), and register_for_checkpointing for its counters"
)


def install(name: str, module: Any, program: ObservedProgram) -> None:
    """Observe the Accelerators of this process; `module` is `accelerate.accelerator`."""
    loaders = sys.modules["accelerate.data_loader"]
    AcceleratorAdapter(program, module).install(module.Accelerator, loaders)


class AcceleratorAdapter:
    """Observes the program's Accelerator, and carries out commands between two of its batches."""

    def __init__(self, program: ObservedProgram, module: Any) -> None:
        self._program = program
        self._acts = program.threadlet.acts
        version = str(getattr(sys.modules["accelerate"], "__version__", ""))
        self._checkpoints = TrainerCheckpoints(program, _SOURCE, version, 1)
        self._accelerator: Any = None  # the first that has prepared an optimizer
        self._folder = ""  # where the program has saved
        self._trigger = ""  # of a checkpoint that was requested and is not saved
        self._is_stopping = False
        self._is_loaded = not _is_resumed()
        self._is_observed = True

    def install(self, accelerator: Any, loaders: Any) -> None:
        """Wrap what programs call."""
        wraps: tuple[tuple[str, Callable[..., Any]], ...] = (
            ("log", self._log),
            ("init_trackers", self._init_trackers),
            ("prepare", self._prepare),
            ("backward", self._backward),
            ("save_state", self._save_state),
            ("load_state", self._load_state),
            ("end_training", self._end_training),
        )
        found = [(name, getattr(accelerator, name), handle) for name, handle in wraps]
        for name, real, handle in found:
            setattr(accelerator, name, _wrapped(real, handle))
        for name in _LOADERS:
            loader = getattr(loaders, name)
            loader.__iter__ = self._dealing(loader.__iter__)

    # What programs call: each gets the real function, and has to call it.

    def _log(self, real: Any, one: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        """Record what the trackers get, also if there are none."""
        step = args[0] if args else kwargs.get("step")
        if one.is_main_process:
            self._do(self._record, values, step)
        return real(one, values, *args, **kwargs)

    def _init_trackers(
        self, real: Any, one: Any, project_name: str, config: Any = None, *args: Any, **kw: Any
    ) -> Any:
        if config:
            self._do(self._program.configure, config)
        return real(one, project_name, config, *args, **kw)

    def _prepare(self, real: Any, one: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(one, *args, **kwargs)
        if self._accelerator is None and one._optimizers and not _is_of_a_trainer():
            self._do(self._begin, one)
        return result

    def _backward(self, real: Any, one: Any, *args: Any, **kwargs: Any) -> Any:
        if one is self._accelerator:
            self._do(self._settle)  # of a program that has not prepared its data loader
        return real(one, *args, **kwargs)

    def _dealing(self, real: Any) -> Any:
        @functools.wraps(real)
        def deal(loader: Any) -> Iterator[Any]:
            for batch in real(loader):
                yield batch
                self._do(self._settle)

        return deal

    def _save_state(self, real: Any, one: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(one, *args, **kwargs)
        if one is self._accelerator:
            self._do(self._saved, str(result))
        return result

    def _load_state(self, real: Any, one: Any, input_dir: Any = None, *args: Any, **kw: Any) -> Any:
        """Load the folder that the program names, else the newest whole checkpoint of the run."""
        if one is not self._accelerator or standin.is_on():
            return real(one, input_dir, *args, **kw)
        if input_dir is None and _is_resumed():
            found = self._checkpoints.find()  # an error must not begin the training anew
            if found is None:
                self._is_loaded = True
                return None  # none is intact, as was reported: the program begins anew
            input_dir = found.path
        else:
            path = os.path.expanduser(str(input_dir or ""))
            found = self._do(self._checkpoints.find_saved, path) if path else None
        result = real(one, input_dir, *args, **kw)
        self._do(self._loaded, found, str(input_dir or ""))
        return result

    def _end_training(self, real: Any, one: Any, *args: Any, **kwargs: Any) -> Any:
        if one is self._accelerator:
            self._do(self._finish)
        return real(one, *args, **kwargs)

    def _do(self, act: Callable[..., Any], *given: Any) -> Any:
        """Call a method; after an error in it, training continues unobserved."""
        if not self._is_observed or threading.current_thread() is not threading.main_thread():
            return None
        try:
            return act(*given)
        except Exception as error:
            self._is_observed = False
            self._program.trained(self)
            self._program.fault(_SOURCE, error)
            return None

    # What follows from it.

    def _record(self, values: Any, step: Any) -> None:
        numbers = {str(name): value for name, value in values.items() if is_number(value)}
        if numbers:
            self._program.log(numbers, None if step is None else int(step))
            self._checkpoints.metrics.update(numbers)

    def _begin(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._checkpoints.begin()
        self._program.train_by(self)
        atexit.register(self._do, self._finish)

    def _settle(self) -> None:
        """Between two batches: save and stop if that is due."""
        step = self._program.step
        if not self._is_loaded and step:
            self._is_loaded = True
            self._report_unloaded()
        if step >= last_step():
            self.stop()
        if self._trigger:
            self._save()
            if self._is_stopping:
                self._checkpoints.finish()  # the next step ends the process

    def _save(self) -> None:
        """Save in the program's own way; report a checkpoint that cannot be written."""
        accelerator, why = self._accelerator, ""
        self._checkpoints.enter(StepPhase.CHECKPOINT)
        try:
            if accelerator.project_configuration.automatic_checkpoint_naming:
                self._name_next()
                accelerator.save_state()
            else:
                accelerator.save_state(os.path.join(self._place(), f"step_{self._program.step}"))
        except Exception as error:
            why = f"it cannot be saved: {type(error).__name__}: {error}"
        self._trigger = ""
        self._checkpoints.enter(StepPhase.STEP)
        self._acts.saved(self._program.step, why)

    def _name_next(self) -> None:
        """Have Accelerate number its next folder behind those that are there."""
        config, folder = self._accelerator.project_configuration, self._place()
        numbers = [-1]
        if os.path.isdir(folder):
            words = (name.rpartition("_")[2] for name in os.listdir(folder))
            numbers += [int(word) for word in words if word.isdecimal()]
        self._accelerator.wait_for_everyone()  # all have looked before one of them writes
        config.iteration = max(config.iteration, max(numbers) + 1)

    def _saved(self, path: str) -> None:
        """Record what this rank has saved."""
        path = os.path.abspath(path)
        trigger = self._trigger or "program"
        if trigger == "program":
            self._folder = os.path.dirname(path)
        self._checkpoints.saved(TrainerSave(self._program.step, path, {}, {}, trigger))
        self._checkpoints.record()

    def _loaded(self, found: FoundTrainerCheckpoint | None, path: str) -> None:
        """Continue at the step of the checkpoint that the program has loaded."""
        self._is_loaded = True
        if found is not None:
            self._checkpoints.restored(found, found.step, path, [_OWN])

    def _report_unloaded(self) -> None:
        found = self._checkpoints.find()
        if found is not None:
            why = _UNLOADED.format(step=found.step, path=found.path)
            self._checkpoints.begun_anew(why)

    def _finish(self) -> None:
        self._checkpoints.finish()
        self._acts.saved(self._program.step, "the training ended before it was saved")

    # What the run asks of it.

    def why_unsaved(self) -> str:
        """Return why it cannot save now, else an empty text."""
        accelerator, size = self._accelerator, 0
        if accelerator.is_main_process:
            parts = [part for model in accelerator._models for part in model.parameters()]
            size = _COPIES * sum(part.numel() * part.element_size() for part in parts)
        return self._checkpoints.why_unsaved(self._place(), size)

    def save(self) -> None:
        """Save before the next batch."""
        self._trigger = "command"

    def stop(self) -> None:
        """End the program at the beginning of its next step; save before, as a trainer does."""
        if self._is_stopping:
            return
        self._is_stopping = True
        is_saving = bool(self._folder) or self._acts.releasing
        if is_saving and not self._trigger and not self.why_unsaved():
            self._trigger = "stop"
        self._program.threadlet.optimizers.stop()

    def _place(self) -> str:
        """Return the folder of checkpoints: where the program has saved, else the project's."""
        project = str(self._accelerator.project_dir or os.getcwd())
        return self._folder or os.path.join(os.path.abspath(project), _FOLDER)


def _wrapped(real: Any, handle: Callable[..., Any]) -> Any:
    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return handle(real, self, *args, **kwargs)

    return call


def _is_resumed() -> bool:
    """Tell whether this process shall resume from a checkpoint."""
    return text(RESUME_VARIABLE) not in ("", NONE)


def _is_of_a_trainer() -> bool:
    """Tell whether the caller is a trainer of another framework, which saves in its own way."""
    frame: Any = sys._getframe()
    for _ in range(_OUTER):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(_OTHERS):
            return True
        frame = frame.f_back
    return False
