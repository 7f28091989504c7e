"""Live recovery of the Hugging Face `Trainer`, without a line in the program.

The unit that is repeated goes from counting the items of a step's batches to the last backward
pass. A newcomer runs the program on a stand-in group, goes to its position by the trainer's own
code for resuming, and joins the others at its first unit.
"""

import contextlib
import copy
import functools
import inspect
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchloom.worker.programs.checkpoints import TrainerCheckpoints
from torchloom.worker.programs.live import (
    LiveTraining,
    Needs,
    count_draws,
    nothing,
    why_changed,
)
from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.recovery.ddp import RemadeDdp, why_fixed
from torchloom.worker.recovery.transfer.channels import State
from torchloom.worker.run.rng import generator_states

# The methods of `Trainer` that recovery relies on: what they are called with, and what they use.
# What is underlined here must be the trainer's own; a subclass may have the others.
PRIVATE: Mapping[str, Needs] = {
    "_inner_training_loop": (
        ("resume_from_checkpoint",),
        (
            *("_init_training_state", "_run_epoch", "_finalize_training", "_tr_loss"),
            *("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step"),
        ),
    ),
    "_init_training_state": (
        ("max_steps", "num_update_steps_per_epoch", "resume_from_checkpoint"),
        ("state", "load_from_json", "global_step"),
    ),
    "_run_epoch": (
        ("model", "epoch", "resume_from_checkpoint", "steps_trained_in_current_epoch"),
        (
            *("get_batch_samples", "_set_sync_gradients", "no_sync", "training_step"),
            *("current_flos", "optimizer", "step", "lr_scheduler", "zero_grad", "global_step"),
            "_maybe_log_save_evaluate",
        ),
    ),
    "_get_num_items_in_batch": (("batch_samples", "device"), ()),
    "_finalize_training": ((), ("log", "on_train_end")),
    "get_batch_samples": (("num_batches",), ("_get_num_items_in_batch",)),
    "training_step": (
        ("model", "inputs", "num_items_in_batch"),
        ("accelerator", "backward", "detach"),
    ),
    "_maybe_log_save_evaluate": (
        (
            *("tr_loss", "grad_norm", "model", "trial", "epoch"),
            *("ignore_keys_for_eval", "start_time", "learning_rate"),
        ),
        ("should_log", "should_evaluate", "should_save", "_globalstep_last_logged"),
    ),
}
_REPLACEABLE = ("training_step", "_maybe_log_save_evaluate")  # by the program's own
_STATE_FILE = "trainer_state.json"
_OF_ONE_RANK = ("is_local_process_zero", "is_world_process_zero")
_NUMBERS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
_HANDED = ("grad_norm", "epoch", "learning_rate")  # arguments that a newcomer does not have
_PARALLEL = ("MULTI_CPU", "MULTI_GPU")


def why_not(trainer: Any) -> str:
    """Return why a loss means that all ranks of a trainer are restarted; empty if it does not."""
    args = trainer.args
    transformers: Any = sys.modules["transformers.trainer"]
    data: Any = sys.modules["torch.utils.data"]
    accelerator = trainer.accelerator
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    loader = trainer.callback_handler.train_dataloader
    found = {
        f"it trains by {kind}": kind not in _PARALLEL,
        "its model is compiled": args.torch_compile or _is_compiled(trainer.model),
        "its data is an IterableDataset": isinstance(trainer.train_dataset, data.IterableDataset),
        "ignore_data_skip begins with the first data again": args.ignore_data_skip,
        "auto_find_batch_size may begin again": args.auto_find_batch_size,
        "include_num_input_tokens_seen counts over the ranks in each step": str(
            args.include_num_input_tokens_seen
        )
        not in ("no", "False"),
        "its ranks agree on a generator for each epoch": bool(getattr(loader, "rng_types", None)),
        "its gradients are averaged in each micro-batch": bool(
            accelerator.gradient_state.plugin_kwargs.get("sync_each_batch")
        ),
    }
    why = next((why for why, is_so in found.items() if is_so), "")
    why = why or why_unknown(type(trainer), transformers.Trainer)
    return why or why_fixed(trainer.model_wrapped)


def why_unknown(kind: type, base: type) -> str:
    """Return which of the names that recovery needs is another here; empty if none is."""
    for name, needs in PRIVATE.items():
        own, found = getattr(base, name, None), getattr(kind, name, None)
        if own is None or found is None:
            return f"Trainer.{name} is missing in this version"
        if found is not own and name not in _REPLACEABLE:
            return f"{kind.__name__} has its own {name}"
        if why := why_changed(f"Trainer.{name}", name, found, own, needs):
            return why
    return ""


class LiveTrainer(LiveTraining):
    """One training of a `Trainer`; its methods are wrapped as long as it trains."""

    def __init__(
        self,
        program: ObservedProgram,
        checkpoints: TrainerCheckpoints,
        trainer: Any,
        joined: Callable[[], None],
        randomness: DatasetRandomness,
    ) -> None:
        super().__init__(program, checkpoints, joined, randomness)
        self._trainer = trainer
        self._is_dealing = False
        self._batches: list[Any] = []
        self._device: Any = None
        self._items: Any = None
        self._done = 0  # micro-batches of this unit that have begun
        self._loss: Any = None  # of the last one, before its backward pass
        self._taken: Any = None  # the loss of a step that a peer has finished
        self._predicted = 0  # batches of an evaluation
        self._call: State = {}  # a peer's, after the step that it has finished
        self._steps: list[tuple[Any, Any]] = []  # optimizers that step no more, and how they did
        self._flos: dict[int, float] = {}  # of a batch, by its size
        self._epoch_rng: Mapping[str, Any] = {}
        self._is_mid_epoch = False  # where a newcomer begins
        self._stored_at = -1  # the step at which the count of operations was stored
        self._folder = ""
        self._start = 0  # the step that a newcomer goes to
        self._page: State = {}  # this rank's own state, as its page has it
        self._ignored: Any = None
        self._own: dict[str, Any] = {}  # the methods that are wrapped

    # Around one call of `train`.

    @contextlib.contextmanager
    def installed(self, ignored: Any) -> Iterator[None]:
        """Wrap what the trainer calls during one training."""
        self._ignored = ignored
        wrapped = {
            "get_batch_samples": self._deal,
            "_get_num_items_in_batch": self._count,
            "training_step": self._step,
            "_maybe_log_save_evaluate": self._between,
            "_finalize_training": self._finalize,
        }
        if self.is_joining:
            wrapped["_inner_training_loop"] = self._loop
            wrapped["_init_training_state"] = self._position
        trainer = self._trainer
        self._own = {name: getattr(trainer, name) for name in wrapped}
        accelerator, backward = trainer.accelerator, trainer.accelerator.backward
        try:
            for name, function in wrapped.items():
                setattr(trainer, name, function)
            vars(accelerator)["backward"] = self._backward_by(backward)
            yield
        finally:
            for name in wrapped:
                trainer.__dict__.pop(name, None)
            vars(accelerator).pop("backward", None)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            self.leave()

    def epoch_begins(self) -> None:
        """An epoch begins, before its data."""
        if self.is_joining:
            self._epoch_rng = generator_states()

    def predicted(self) -> None:
        """A batch of an evaluation is done."""
        self._predicted += 1

    def carry(self) -> None:
        trainer = self._trainer
        optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
        things = {
            "optimizer": getattr(optimizer, "optimizer", optimizer),
            "schedule": getattr(schedule, "scheduler", schedule),
        }
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            things["scaler"] = scaler
        self.track(RemadeDdp(trainer.model_wrapped), **things)

    def why_not(self) -> str:
        """Return why a loss means that all ranks are restarted; empty if it does not."""
        return why_not(self._trainer)

    # What the trainer calls.

    def _deal(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of a step, and begin its unit."""
        self._is_dealing = True
        try:
            return self._own["get_batch_samples"](*args, **kwargs)
        finally:
            self._is_dealing = False

    def _count(self, batch_samples: list[Any], device: Any) -> Any:
        """Begin a unit: count the items of its batches over all ranks. Evaluations count, too."""
        count = self._own["_get_num_items_in_batch"]
        is_live = self.is_live or self.is_joining
        if not (batch_samples and is_live and self._is_dealing):
            return count(batch_samples, device)
        self.enter_unit(self._own_draws())
        self._batches, self._device, self._done = batch_samples, device, 0
        again = functools.partial(count, batch_samples, device)
        self._items = self.attempt(again, again)
        self.check_data()
        return self._items

    def _step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do one micro-batch; the last one ends the unit."""
        step = self._own["training_step"]
        if not self.is_live:
            return step(model, inputs, num_items_in_batch)
        self._done += 1
        is_last = self._done == len(self._batches)
        loss = self.attempt(lambda: step(model, inputs, self._items), self._again)
        if is_last and not self.has_noted():
            self.give_up("its training_step does not call accelerator.backward")
        return loss

    def _again(self) -> Any:
        """Do the micro-batches of this unit again, with the new members."""
        if self._taken is not None:
            loss, self._taken = self._taken, None
            return loss
        count = self._own["_get_num_items_in_batch"]
        self._items = count(self._batches, self._device)
        return self._micro_batches(self._trainer.model_wrapped)

    def _micro_batches(self, model: Any) -> Any:
        trainer, loss = self._trainer, None
        for at, inputs in enumerate(self._batches[: self._done]):
            is_last = at == len(self._batches) - 1
            trainer.accelerator.gradient_state._set_sync_gradients(is_last)
            is_ddp = model is trainer.model_wrapped
            quiet = trainer.accelerator.no_sync(model) if is_ddp and not is_last else None
            with quiet or contextlib.nullcontext():
                loss = self._own["training_step"](model, copy.copy(inputs), self._items)
        return loss

    def _backward_by(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def noted(loss: Any, **kwargs: Any) -> Any:
            if self._done == len(self._batches) and not self._is_behind:
                self._loss = loss
                self.note()
            return backward(loss, **kwargs)

        return noted

    def _between(self, tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """Log, evaluate and save after a step, or after an epoch."""
        real = self._own["_maybe_log_save_evaluate"]
        if self._steps:
            self._step_again()
            grad_norm = self._call.get("grad_norm", grad_norm)
            kwargs["learning_rate"] = self._call.get("learning_rate", kwargs.get("learning_rate"))
        trainer, control = self._trainer, self._trainer.control
        is_quiet = not (control.should_log or control.should_evaluate or control.should_save)
        if is_quiet or not self.is_live:
            real(tr_loss, grad_norm, *args, **kwargs)
            return
        base: Any = sys.modules["transformers.trainer"].Trainer._maybe_log_save_evaluate
        bound = inspect.signature(base).bind(trainer, tr_loss, grad_norm, *args, **kwargs)
        call = {name: bound.arguments.get(name) for name in _HANDED}
        snapshot, is_again = _Snapshot(trainer), False

        def act() -> None:
            nonlocal is_again
            self._predicted = 0
            if is_again:
                snapshot.put_back()
            is_again = True
            real(tr_loss, grad_norm, *args, **kwargs)
            self._note_stored()

        self.pass_between(act, lambda: {**snapshot.to_state(), "call": call})

    def _note_stored(self) -> None:
        if not self._trainer.current_flos:
            self._stored_at = self.reached()

    def _finalize(self, *args: Any, **kwargs: Any) -> Any:
        self.finish(self._own_draws())
        return self._own["_finalize_training"](*args, **kwargs)

    # The position of a newcomer.

    def _loop(self, *args: Any, **kwargs: Any) -> Any:
        """Have the trainer resume where the others are, with its own code."""
        start = self.foresee()
        if start:
            folder = self._program.threadlet.identity.own_folder
            self._folder = kwargs["resume_from_checkpoint"] = tempfile.mkdtemp(dir=folder)
            self._start = start
        return self._own["_inner_training_loop"](*args, **kwargs)

    def _position(
        self, max_steps: Any, num_update_steps_per_epoch: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Let the trainer find the epoch and the batch of the step it resumes at."""
        real = self._own["_init_training_state"]
        if self._folder:
            trainer = self._trainer
            real(max_steps, num_update_steps_per_epoch, args[0], None, args[2])
            trainer.state.global_step = self._start
            trainer.state.epoch = self._start / num_update_steps_per_epoch
            trainer.state.save_to_json(str(Path(self._folder, _STATE_FILE)))
        found = real(max_steps, num_update_steps_per_epoch, *args, **kwargs)
        self._is_mid_epoch = bool(found[1])
        return found

    def _own_draws(self) -> int | None:
        """Return how often a newcomer has drawn for its first unit, if an epoch begins there."""
        if self._is_mid_epoch or not self._epoch_rng:
            return 0
        return count_draws(self._epoch_rng, generator_states())

    # As `LiveTraining` needs it.

    def reached(self) -> int:
        """Return how many steps of the run are done."""
        return self._program.at(int(self._trainer.state.global_step))

    def own_state(self) -> State:
        """Return the loss since the last log, and the count of operations, of this rank."""
        trainer, loss = self._trainer, self._loss
        if loss is None or self._at < 0:
            return {"loss": trainer._tr_loss.clone(), "flos": float(trainer.current_flos)}
        total, loss = trainer._tr_loss, loss.detach()
        if trainer.args.logging_nan_inf_filter and not bool(torch.isfinite(loss)):
            steps = 1 + trainer.state.global_step - trainer._globalstep_last_logged
            loss = total / steps
        return {"loss": total + loss, "flos": float(trainer.current_flos) + self._flos_of_last()}

    def _flos_of_last(self) -> float:
        inputs, trainer = self._batches[-1], self._trainer
        name = getattr(trainer.model, "main_input_name", "input_ids")
        size = inputs[name].numel() if name in inputs else 0
        if size not in self._flos:
            self._flos[size] = float(trainer.floating_point_ops(inputs))
        return self._flos[size]

    def common_state(self) -> State:
        """Return the trainer's state, its control and its callbacks, and its numbers."""
        is_stored = self._stored_at == self.reached()
        return {**_Snapshot(self._trainer).to_state(), "is_stored": is_stored}

    def take_state(self, common: State, own: State | None) -> None:
        """Continue as the trainer of a peer, with this rank's own numbers."""
        trainer = self._trainer
        _put_back(trainer, common)
        if own is None:
            return
        self._page = own
        is_logged = trainer._globalstep_last_logged == trainer.state.global_step
        trainer._tr_loss.copy_(0 * own["loss"] if is_logged else own["loss"])
        trainer.current_flos = 0 if common["is_stored"] else own["flos"]

    def redo_as_newcomer(self, interlude: State) -> None:
        """Log, evaluate and save with the others."""
        trainer, call = self._trainer, interlude["call"]
        _put_back(trainer, interlude)
        trainer._tr_loss.copy_(self._page["loss"])
        trainer.current_flos = self._page["flos"]
        norm, rate = call["grad_norm"], call["learning_rate"]
        more = trainer._tr_loss, norm, trainer.model_wrapped, None, call["epoch"], self._ignored
        self._own["_maybe_log_save_evaluate"](*more, time.time(), learning_rate=rate)
        self._note_stored()

    def take_step(self, common: State, load: Callable[[], None]) -> None:
        """Compute this rank's loss alone, then take what the step gave."""
        self._taken = self._micro_batches(self.things.models["model"].module)
        load()
        self._call = common["interlude"].get("call", {})
        for one in (self._trainer.optimizer, self._trainer.lr_scheduler):
            self._steps.append((one, vars(one).get("step")))
            vars(one)["step"] = nothing

    def _step_again(self) -> None:
        """Let the optimizer step from now on."""
        for one, step in self._steps:
            vars(one).pop("step")
            if step is not None:
                vars(one)["step"] = step
        self._steps.clear()

    def why_broken(self) -> str:
        """Return why an evaluation that has begun cannot be done again."""
        return "a rank was lost in an evaluation" if self._predicted else ""


class _Snapshot:
    """What an interlude changes in a trainer, before it does; its parts are not copied."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._state = dict(vars(trainer.state))
        self._state["stateful_callbacks"] = dict(trainer.state.stateful_callbacks)
        self._logged = len(trainer.state.log_history)
        self._control = dict(vars(trainer.control))
        self._callbacks = [dict(one.state()["attributes"]) for one in _stateful(trainer)]
        self._numbers = {name: getattr(trainer, name) for name in _NUMBERS}
        self._loss, self._flos = trainer._tr_loss.clone(), trainer.current_flos

    def to_state(self) -> State:
        """Return it as a peer takes it."""
        state = {**self._state, "log_history": self._state["log_history"][: self._logged]}
        shown = {"state": state, "control": self._control, "callbacks": self._callbacks}
        return {"shown": json.dumps(shown), "numbers": self._numbers}

    def put_back(self) -> None:
        """Make the trainer as it was."""
        _put_back(self._trainer, self.to_state())
        self._trainer._tr_loss.copy_(self._loss)
        self._trainer.current_flos = self._flos


def _put_back(trainer: Any, common: State) -> None:
    shown = json.loads(common["shown"])
    for name, value in shown["state"].items():
        if name not in _OF_ONE_RANK:
            setattr(trainer.state, name, value)
    vars(trainer.control).update(shown["control"])
    for one, attributes in zip(_stateful(trainer), shown["callbacks"], strict=True):
        vars(one).update(attributes)
    for name, value in common["numbers"].items():
        setattr(trainer, name, value)


def _stateful(trainer: Any) -> list[Any]:
    """Return the callbacks that have a state."""
    module: Any = sys.modules["transformers.trainer_callback"]
    return [
        one for one in trainer.callback_handler.callbacks if isinstance(one, module.ExportableState)
    ]


def _is_compiled(model: Any) -> bool:
    """Tell whether a model, or a part of it, is compiled by torch."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    kind = getattr(dynamo, "OptimizedModule", ())
    return any(
        isinstance(one, kind) or one._compiled_call_impl is not None for one in model.modules()
    )
