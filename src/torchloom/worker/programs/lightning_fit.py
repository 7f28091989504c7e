"""One call of `Trainer.fit`: its steps, and how it saves, stops and resumes in Lightning's way."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from torchloom.bus.progress_page import StepPhase
from torchloom.worker.environment import INCARNATION_VARIABLE, RESUME_VARIABLE, is_set, text
from torchloom.worker.programs.checkpoints import (
    FoundTrainerCheckpoint,
    TrainerCheckpoints,
    TrainerSave,
)
from torchloom.worker.programs.lightning_position import DataPosition
from torchloom.worker.programs.program import ObservedProgram, Source, last_step
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.recovery import standin

SOURCE: Source = "lightning"
_SECOND = "it is not the first training of its process"
_COPIES = 3  # of the weights in a checkpoint: themselves, and what most optimizers keep
_CLI = "_class_path"  # a hyperparameter of Lightning's own command line
_FOLDER = "checkpoints"  # in the Trainer's root, if it has no callback for checkpoints


class ObservedFit:
    """A training; commands take effect when all is done that belongs to a step."""

    def __init__(self, program: ObservedProgram, trainer: Any, version: str, training: int) -> None:
        self.trainer = trainer
        self.position = DataPosition(trainer)
        self.is_set_up = False
        self.step = -1  # of the trainer
        self._is_observed = True
        self._since = program.step
        self._program = program
        self._acts = program.threadlet.acts
        self._checkpoints = TrainerCheckpoints(program, SOURCE, version, training)
        self._found: FoundTrainerCheckpoint | None = None
        self._from = ""  # where it resumes
        self._has_looked = False  # for that
        self._is_leading = False  # its steps are those of the run
        self._trigger = ""  # of a checkpoint that was requested and is not saved
        self._is_stopping = False
        self._is_first = training == 1
        self.live: Any = None  # its `LiveFit`, where it may be recovered live
        self._writing: Any = None  # what a checkpoint is written by in the background

    def do(self, act: Callable[..., Any], *given: Any) -> Any:
        """Call one of the methods; after an error in it, training continues unobserved."""
        if not self._is_observed:
            return None
        try:
            return act(*given)
        except Exception as error:
            self._is_observed = self.is_set_up = False
            self._program.fault(SOURCE, error)
            self._leave()
            return None

    # Resuming, and live recovery.

    @contextmanager
    def recoverable(self, randomness: DatasetRandomness) -> Iterator[None]:
        """Recover the first training of this process live, if its agent can start newcomers."""
        if not self._is_first or not is_set(INCARNATION_VARIABLE):
            yield
            return
        from torchloom.worker.programs.lightning_live import LiveFit  # imported on use

        what = self._program, self._checkpoints, self.trainer, self._lead, randomness
        self.live = LiveFit(*what)
        with self.live.installed():
            yield

    def resume(self, own: Any) -> str:
        """Return the checkpoint to restore if the program does not name its own. A collective."""
        if self._has_looked or standin.is_on():
            return ""
        self._has_looked = True
        if own:
            self._from = str(own)
            self._found = self.do(self._checkpoints.find_saved, self._from)
            return ""
        self._found = self._checkpoints.find()
        self._from = self._found.path if self._found is not None else ""
        return self._from

    def is_repeated(self, loop: Any) -> bool:
        """Tell whether what follows a batch was done before the checkpoint was saved.

        A Trainer that resumes from the end of a batch skips the validation that it has done, but
        counts the batch and steps the schedulers that follow a metric once more.
        """
        if not loop._skip_next_val or self._found is None:
            return False
        if not self._found.own["position"]["is_counted"]:
            return False
        loop._skip_next_val = False
        return True

    def _restore(self) -> None:
        """Continue where the checkpoint was saved: its data, random numbers, metrics and knobs."""
        trainer, found = self.trainer, self._found
        whys = ["no checkpoint of this run has this file"]
        step = int(trainer.global_step)
        if found is not None:
            own, step = found.own, found.step
            whys = [str(own["why"]), self.position.why_elsewhere()]
            self.position.restore(own["position"])
            trainer._logger_connector._callback_metrics.update(_as_tensors(own["metrics"]))
        self._checkpoints.restored(found, step, self._from, whys)

    # What the Trainer calls.

    def set_up(self) -> None:
        """Follow the trainer's loops from now on."""
        self.is_set_up = True
        self._program.return_to(self._since)  # from the steps of a search

    def begin(self) -> None:
        """Begin the training at the step that the trainer has restored."""
        program, trainer = self._program, self.trainer
        program.configure(hyperparameters(trainer))
        if self._from and (self._found is not None or text(RESUME_VARIABLE)):
            self._restore()
        self._checkpoints.begin(is_alone=standin.is_on())
        if self.live is None and trainer.world_size > 1 and trainer.is_global_zero:
            program.threadlet.event("not_live", {"why": _SECOND})
        if self.live is None or not self.live.is_joining:
            self._lead()

    def _lead(self) -> None:
        """Make the steps of this training those of the run, unless another has priority."""
        program, trainer = self._program, self.trainer
        self.step = int(trainer.global_step)
        self._is_leading = program.begin(SOURCE, self.step)
        if self._is_leading:
            self._report_total(total_steps(trainer))
            program.train_by(self)
            if self._acts.stopping:
                self._end_early()

    def _report_total(self, own: int | None) -> None:
        """Report how many steps are to come: the trainer's, or those until the run ends."""
        program, last = self._program, last_step()
        most = last if own is None else min(last, program.at(own))
        program.total(None if math.isinf(most) else int(most) - program.at(0))
        if own is not None and program.at(own) < last < math.inf and self.trainer.is_global_zero:
            sys.stderr.write(
                f"loom: lightning ends at its own last step {program.at(own)}, not at {last:.0f}:"
                f" raise max_steps or max_epochs in the script\n"
            )

    def end_step(self) -> None:
        """Pass the boundary when all is done for a step; save and stop here if that is due."""
        self.step = int(self.trainer.global_step)
        if not self._is_leading:
            return
        self._program.reach(SOURCE, self.step)
        if self._program.step >= last_step():
            self.stop()
        if self._trigger and self.live is not None:
            self.live.save(self._save)
        elif self._trigger:
            self._save()
        self.record()
        if self._is_stopping:
            self._end_early()

    def logged(self, values: Mapping[str, Any]) -> None:
        """Keep the last numbers, which are kept with each checkpoint."""
        self._checkpoints.metrics.update(values)

    def saved(self, path: Any) -> None:
        """Note what the trainer has saved, if a later process can resume from it."""
        trainer = self.trainer
        if trainer.interrupted:
            return  # an exception was raised in the middle of a step
        if self._is_stopping and not self._trigger:
            return  # an epoch that was ended early, as if it were complete
        trigger, self._trigger = self._trigger or "program", ""
        at, where = self._program.at(int(trainer.global_step)), str(path)
        own = {
            "rules": self._program.threadlet.optimizers.state(),
            "why": self.position.why_inexact(),
            "position": {**self.position.state(), "is_counted": trigger != "program"},
            "metrics": _as_numbers(trainer.callback_metrics),
        }
        facts = {"epoch": int(trainer.current_epoch)}
        if "://" not in where:
            self._checkpoints.saved(TrainerSave(at, os.path.abspath(where), own, facts, trigger))
            executor = getattr(trainer.strategy.checkpoint_io, "_executor", None)
            self._writing = executor.submit(_nothing) if executor is not None else None

    def record(self) -> None:
        """Record what was saved last, once it is written."""
        if self._writing is None or self._writing.done():
            self._writing = None
            self._checkpoints.record()

    def begin_evaluation(self) -> None:
        """Show that the training evaluates."""
        self._checkpoints.enter(StepPhase.EVALUATION)

    def end_evaluation(self) -> None:
        """Show that the step continues."""
        self._checkpoints.enter(StepPhase.STEP)

    def finish(self) -> None:
        """Wait until all is recorded that was saved."""
        self._checkpoints.enter(StepPhase.CHECKPOINT)
        if self._writing is not None:
            self._writing.result()
            self._writing = None
        self._checkpoints.finish()
        self._checkpoints.enter(StepPhase.STEP)

    def leave(self) -> None:
        """End the training, also one that an exception has ended."""
        self.record()
        self._leave()

    def _leave(self) -> None:
        if self._is_leading:
            self._is_leading = False
            self._program.trained(self)
            self._acts.saved(self._program.step, "the training ended before it was saved")
            self._program.end(SOURCE)

    # What the run asks of it.

    def why_unsaved(self) -> str:
        """Return why it cannot save now, else an empty text."""
        size = 0
        if self.trainer.is_global_zero:
            parts = self.trainer.lightning_module.parameters()
            size = _COPIES * sum(part.numel() * part.element_size() for part in parts)
        folder = self._folder()
        if "://" in folder:
            return f"checkpoints in {folder} are not recorded: it is not a folder"
        return self._checkpoints.why_unsaved(folder, size)

    def save(self) -> None:
        """Save at the end of this step."""
        self._trigger = "command"

    def stop(self) -> None:
        """End the training at the end of this step; save if the program saves, or will resume."""
        if self._is_stopping:
            return
        self._is_stopping = True
        is_saving = bool(self.trainer.checkpoint_callbacks) or self._acts.releasing
        if is_saving and not self._trigger and not self.why_unsaved():
            self._trigger = "stop"

    def _save(self) -> None:
        """Save with all ranks; report a checkpoint that cannot be written, and continue."""
        trainer = self.trainer
        self._checkpoints.enter(StepPhase.CHECKPOINT)
        path, why = os.path.join(self._folder(), f"loom-step={self.step}.ckpt"), ""
        try:
            trainer.save_checkpoint(path)
        except OSError as error:
            why = f"{path} cannot be written: {error.strerror or error}"
            trainer.strategy.barrier("Trainer.save_checkpoint")  # the others wait there
        self._trigger = ""
        self._checkpoints.enter(StepPhase.STEP)
        self._acts.saved(self._program.step, why)

    def _end_early(self) -> None:
        """Have the loops end here, whatever least the program has set."""
        self._is_stopping, loop = True, self.trainer.fit_loop
        loop.min_epochs, loop.epoch_loop.min_steps = 0, None
        self.trainer.should_stop = True

    def _folder(self) -> str:
        """Return where the program saves, else a folder in the trainer's root."""
        folders = [getattr(one, "dirpath", None) for one in self.trainer.checkpoint_callbacks]
        own = next((str(folder) for folder in folders if folder), "")
        return own or os.path.join(str(self.trainer.default_root_dir), _FOLDER)


def hyperparameters(trainer: Any) -> dict[str, Any]:
    """Return the hyperparameters that a Trainer gives to its loggers."""
    found: dict[str, Any] = {}
    for one in (trainer.lightning_module, trainer.datamodule):
        if one is not None and getattr(one, "_log_hyperparams", False):
            found |= dict(one.hparams_initial)
    found.pop(_CLI, None)
    return found


def total_steps(trainer: Any) -> int | None:
    """Return how many steps a Trainer will take, if it knows; its data are set up by now."""
    if trainer.lightning_module.automatic_optimization:
        steps = trainer.estimated_stepping_batches
    else:  # its batches may take several steps, or none
        steps = trainer.max_steps
    return None if math.isinf(steps) or steps < 0 else int(steps)


def _as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in metrics.items()}


def _as_tensors(metrics: Mapping[str, float]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in metrics.items()}


def _nothing() -> None:
    """Do nothing, after all that was submitted before."""
