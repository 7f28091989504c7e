"""The Hugging Face `Trainer`: its numbers and steps, and how it saves, stops and resumes.

What every instance calls is observed: the handler of its callbacks, after the last callback, and
`train`. The program's own list of callbacks stays as it is.
"""

import functools
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from torchloom.bus.progress_page import StepPhase
from torchloom.worker import environment
from torchloom.worker.environment import RESUME_VARIABLE, UNTIL_VARIABLE
from torchloom.worker.programs.checkpoints import (
    FoundTrainerCheckpoint,
    TrainerCheckpoints,
    TrainerSave,
)
from torchloom.worker.programs.program import ObservedProgram, Source, is_number
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.recovery import standin
from torchloom.worker.threadlet.import_hook import when_imported

_SOURCE: Source = "transformers"
_NEVER = 1 << 62
_COPIES = 3  # of the weights in a checkpoint: themselves, and what most optimizers keep
_LONGEST = 200  # letters of a value of the config
_SPEED = re.compile("_runtime$|_per_second$|^epoch$|^total_flos$")  # not of the model
_SHOWN = (  # of the training arguments, also if they have their defaults
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
    *("max_steps", "optim", "seed", "bf16", "fp16", "save_strategy", "save_steps"),
)


def install(name: str, module: Any, program: ObservedProgram) -> None:
    """Observe every `Trainer` of this process; `module` is `transformers.trainer`."""
    adapter = TrainerAdapter(program, module)
    adapter.install(module.CallbackHandler, module.Trainer)
    when_imported("torch.utils.data._utils.fetch", adapter.randomness.install)


class TrainerAdapter:
    """Observes the trainers of this process, and the trainings that they run."""

    def __init__(self, program: ObservedProgram, module: Any) -> None:
        self.program = program
        self.randomness = DatasetRandomness()
        self.version = str(getattr(sys.modules.get("transformers"), "__version__", ""))
        self.prefix: str = module.PREFIX_CHECKPOINT_DIR
        self.newest_in = module.get_last_checkpoint
        self._running: dict[int, ObservedTraining] = {}  # by the trainer's handler of callbacks
        self._trainings = 0

    def install(self, handler: Any, trainer: Any) -> None:
        """Wrap what all trainers call."""
        call_event, train = handler.call_event, trainer.train
        observe, training = self._observe, self._training

        @functools.wraps(call_event)
        def observed_event(
            self_: Any, event: str, args: Any, state: Any, control: Any, **kwargs: Any
        ) -> Any:
            logs = dict(kwargs.get("logs") or {})  # callbacks take some of them out
            control = call_event(self_, event, args, state, control, **kwargs)
            observe(self_, event, args, state, control, logs)
            return control

        @functools.wraps(train)
        def observed_train(
            self_: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            trial = args[0] if args else kwargs.get("trial")
            ignored = args[1] if len(args) > 1 else kwargs.get("ignore_keys_for_eval")
            with training(self_, trial) as one:
                if one is None:
                    return train(self_, resume_from_checkpoint, *args, **kwargs)
                with one.recoverable(ignored):
                    given = one.resume(resume_from_checkpoint)
                    return train(self_, given, *args, **kwargs)

        handler.call_event, trainer.train = observed_event, observed_train

    @contextmanager
    def _training(self, trainer: Any, trial: Any) -> "Iterator[ObservedTraining | None]":
        """Observe one call of `train`; one in a search, or within `run.steps`, is not resumed."""
        if threading.current_thread() is not threading.main_thread():
            yield None
            return
        self._trainings += 1
        is_alone = trial is None and not self.program.threadlet.is_followed
        number = self._trainings if is_alone else 0
        key = id(trainer.callback_handler)
        self._running[key] = one = ObservedTraining(self, trainer, number)
        try:
            yield one
        finally:
            self._running.pop(key, None)
            one.leave()

    def _observe(
        self, handler: Any, event: str, args: Any, state: Any, control: Any, logs: Mapping[str, Any]
    ) -> None:
        one = self._running.get(id(handler))
        try:
            if one is not None:
                if (handle := one.handlers.get(event)) is not None:
                    handle(args, state, control, logs)
            elif event == "on_log":  # an evaluation outside of a training
                log(self.program, state, logs)
        except Exception as error:  # training continues unobserved
            self._running.pop(id(handler), None)
            self.program.fault(_SOURCE, error)
            if one is not None:
                one.give_up(state)


class ObservedTraining:
    """One training: it carries out commands in the trainer's own way."""

    def __init__(self, adapter: TrainerAdapter, trainer: Any, number: int) -> None:
        self.handlers = {
            "on_train_begin": self._begin,
            "on_epoch_begin": self._epoch_begins,
            "on_prediction_step": self._predicted,
            "on_step_begin": self._step_begins,
            "on_step_end": self._step_ends,
            "on_log": self._log,
            "on_evaluate": self._evaluated,
            "on_save": self._saved,
            "on_epoch_end": self._epoch_ends,
            "on_train_end": self._end,
        }
        self._program = program = adapter.program
        self._acts = program.threadlet.acts
        self._adapter = adapter
        self._trainer = trainer
        self._checkpoints: TrainerCheckpoints | None = None
        self._is_first = number == 1
        if number:
            self._checkpoints = TrainerCheckpoints(program, _SOURCE, adapter.version, number)
        self._found: FoundTrainerCheckpoint | None = None
        self._from = ""  # where it resumes
        self._is_leading = False  # its steps are those of the run
        self._trigger = ""  # of a checkpoint that was requested and is not saved
        self._is_stopping = False
        self._last = -1  # the step that was saved last
        self._size = 0  # bytes of a checkpoint, about
        self._live: Any = None  # its `LiveTrainer`, where it may be recovered live
        until = environment.text(UNTIL_VARIABLE)
        self._until = int(until) if until.isdecimal() else _NEVER

    # Resuming, and live recovery.

    @contextmanager
    def recoverable(self, ignored: Any) -> Iterator[None]:
        """Recover the first training of this process live, if its agent can start newcomers."""
        can_live = environment.is_set(environment.INCARNATION_VARIABLE) and self._is_first
        if self._checkpoints is None or not can_live:
            yield
            return
        from torchloom.worker.programs.huggingface_live import LiveTrainer  # imported on use

        draws = self._adapter.randomness
        self._live = LiveTrainer(
            self._program, self._checkpoints, self._trainer, self._joined, draws
        )
        with self._live.installed(ignored):
            yield

    def resume(self, own: Any) -> Any:
        """Return what `train` shall resume from: what the program passes, else what is named."""
        if standin.is_on():
            return None if self._live is not None else own
        if self._checkpoints is None:
            return own
        if own:
            path = self._adapter.newest_in(self._trainer.args.output_dir) if own is True else own
            self._from = str(path or "")
            self._found = self._checkpoints.find_saved(self._from) if path else None
            return own
        self._found = self._checkpoints.find()
        if self._found is None:
            return own
        self._from = self._found.path
        return self._from

    def _whys(self, args: Any) -> list[str]:
        """Return why the resumed training is not the undisturbed one, as far as it is known."""
        data: Any = sys.modules["torch.utils.data"]
        is_iterable = isinstance(self._trainer.train_dataset, data.IterableDataset)
        own = self._found.own if self._found is not None else {}
        found = {
            "no checkpoint of this run has these files": self._found is None,
            "ignore_data_skip begins with the first data again": args.ignore_data_skip,
            "save_only_model saves no optimizer": args.save_only_model,
            "the order of an IterableDataset is its own": is_iterable,
            "the dataset draws random numbers, which are not drawn again": own.get("draws"),
        }
        return [why for why, is_so in found.items() if is_so]

    # What the trainer calls.

    def _begin(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        program, checkpoints = self._program, self._checkpoints
        program.configure(config_of(args))
        is_again = self._found is not None or environment.text(RESUME_VARIABLE)
        if checkpoints is not None and self._from and is_again:
            step = self._found.step if self._found is not None else int(state.global_step)
            whys = self._whys(args)
            checkpoints.restored(self._found, step, self._from, whys)
        if checkpoints is not None:
            checkpoints.begin(is_alone=standin.is_on())
        self._size = _COPIES * sum(
            one.numel() * one.element_size() for one in self._trainer.model.parameters()
        )
        if self._live is None or not self._live.is_joining:
            self._lead(state)
        if self._live is not None:
            self._live.start()

    def _joined(self) -> None:
        self._lead(self._trainer.state)

    def _lead(self, state: Any) -> None:
        """Make the steps of this training those of the run, unless another has priority."""
        program = self._program
        self._is_leading = program.begin(_SOURCE, int(state.global_step))
        if self._is_leading:
            last = int(state.max_steps)
            program.total(min(last, self._until - program.at(0)))
            program.train_by(self)
            if _NEVER > self._until > program.at(last) and state.is_world_process_zero:
                sys.stderr.write(
                    f"loom: transformers ends at its own last step {program.at(last)}, not at"
                    f" {self._until}: raise max_steps in the script\n"
                )

    def _epoch_begins(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.epoch_begins()

    def _predicted(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.predicted()

    def _step_begins(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        if self._checkpoints is not None:
            self._checkpoints.record()

    def _step_ends(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        if not self._is_leading:
            return
        program = self._program
        program.reach(_SOURCE, int(state.global_step))
        if program.step >= self._until and not self._is_stopping:
            self.stop()
        if self._is_stopping:
            control.should_training_stop = True
        if self._trigger:
            control.should_save = True
        if control.should_save:
            self._enter(StepPhase.CHECKPOINT)
        elif control.should_evaluate:
            self._enter(StepPhase.EVALUATION)

    def _log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        numbers = log(self._program, state, logs)
        if self._checkpoints is not None:
            kept = {name: one for name, one in numbers.items() if not _SPEED.search(name)}
            self._checkpoints.metrics.update(kept)

    def _evaluated(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        self._enter(StepPhase.CHECKPOINT if control.should_save else StepPhase.STEP)

    def _saved(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        self._enter(StepPhase.STEP)
        self._last = step = int(state.global_step)
        at, trigger = self._program.at(step), self._trigger or "program"
        self._trigger = ""
        if self._checkpoints is not None:
            path = os.path.abspath(os.path.join(args.output_dir, f"{self._adapter.prefix}-{step}"))
            own = {"draws": self._adapter.randomness.draws}
            facts = {"epoch": int(state.epoch or 0), "optimizer_state": not args.save_only_model}
            self._checkpoints.saved(TrainerSave(at, path, own, facts, trigger))
        if self._is_leading:
            self._acts.saved(at)

    def _epoch_ends(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        """Do not do what an epoch ends with if it ends early, because the training is stopped."""
        if self._is_stopping:
            control.should_evaluate = False
            if self._last == int(state.global_step):
                control.should_save = False

    def _end(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        if self._checkpoints is not None:
            self._enter(StepPhase.CHECKPOINT)
            self._checkpoints.finish()
        self.leave()

    def leave(self) -> None:
        """End the training, also one that an exception has ended."""
        if self._checkpoints is not None:
            self._checkpoints.record()
        if self._is_leading:
            self._is_leading = False
            self._program.trained(self)
            self._acts.saved(self._program.step, "the training ended before it was saved")
            self._program.end(_SOURCE)

    def give_up(self, state: Any) -> None:
        """End what is observed of a training that continues: its optimizer's steps are counted."""
        if self._is_leading:
            self._program.reach(_SOURCE, int(state.global_step))
        self.leave()

    # What the run asks of it.

    def why_unsaved(self) -> str:
        """Return why it cannot save now, else an empty text."""
        if self._checkpoints is None:
            return "a training in a search of hyperparameters, or in `run.steps`, is not resumed"
        args = self._trainer.args
        size = self._size if args.should_save else 0
        return self._checkpoints.why_unsaved(args.output_dir, size)

    def save(self) -> None:
        """Save at the end of this step."""
        self._trigger = "command"

    def stop(self) -> None:
        """End the training at the end of this step; save if the program saves, or will resume."""
        if self._is_stopping:
            return
        self._is_stopping = True
        strategy = self._trainer.args.save_strategy
        is_saving = str(getattr(strategy, "value", strategy)) != "no"
        if (is_saving or self._acts.releasing) and not self._trigger and not self.why_unsaved():
            self._trigger = "stop"

    def _enter(self, phase: StepPhase) -> None:
        if self._checkpoints is not None:
            self._checkpoints.enter(phase)


def log(program: ObservedProgram, state: Any, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Record numbers that the trainer logs, at its step; all ranks have the same ones."""
    numbers = {name: value for name, value in logs.items() if is_number(value)}
    if state.is_world_process_zero and numbers:
        program.log(numbers, int(state.global_step))
    return numbers


def config_of(args: Any) -> dict[str, Any]:
    """Return the training arguments that describe the training."""
    found = {}
    for field in fields(args):
        value = getattr(args, field.name, None)
        value = value.value if isinstance(value, Enum) else value
        is_plain = isinstance(value, bool | int | float) or (
            isinstance(value, str) and len(value) <= _LONGEST
        )
        if not is_plain:
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        default = default.value if isinstance(default, Enum) else default
        if field.name in _SHOWN or value != default:
            found[field.name] = value
    return found
