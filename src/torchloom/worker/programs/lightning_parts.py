"""What live recovery relies on in Lightning: its private names, and the parts of a step to repeat.

`PRIVATE` is compared with the installed version when a training begins. What a batch changes beside
the gradients is put back before it is computed again.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from torchloom.worker.programs.live import Needs, why_changed
from torchloom.worker.recovery.ddp import RemadeDdp, why_fixed
from torchloom.worker.run.rng import generator_states, restore_generators

_LOOP = "_Loop"  # Lightning's class of all loops
_STEPPED = "_batches_that_stepped"  # a count of a loop itself
Counters = list[tuple[dict[str, Any], tuple[str, ...]]]  # attributes of an object, some of them

# The methods that recovery relies on, by their class: what they are called with, and what they use.
PRIVATE: Mapping[str, Mapping[str, Needs]] = {
    "_FitLoop": {
        "on_run_start": ((), ()),
        "on_advance_start": ((), ("epoch_progress", "increment_ready", "increment_started")),
        "on_advance_end": ((), ("epoch_progress", "increment_processed", "increment_completed")),
        "on_run_end": ((), ()),
    },
    "_TrainingEpochLoop": {
        "_broadcast_sigterm_tensor": ((), ("torch", "distributed", "broadcast")),
        "on_run_start": (("data_fetcher",), ("fetched", "current_epoch")),
        "reset": ((), ("batch_progress", "reset_on_run")),
        "advance": (
            ("data_fetcher",),
            (
                *("_broadcast_sigterm_tensor", "batch_progress", "increment_ready", "run"),
                *("automatic_optimization", "update_lr_schedulers", "_call_callback_hooks"),
            ),
        ),
        "on_advance_end": (
            ("data_fetcher",),
            ("_should_check_val_fx", "val_loop", "_batches_that_stepped"),
        ),
        "_should_accumulate": ((), ()),
        "_num_ready_batches_reached": ((), ("batch_progress",)),
    },
    "_AutomaticOptimization": {
        "run": (("optimizer", "batch_idx", "kwargs"), ("_make_closure", "_optimizer_step")),
        "_make_closure": (("kwargs", "optimizer", "batch_idx"), ("Closure",)),
        "_optimizer_step": (("batch_idx",), ("optim_progress", "increment_completed")),
    },
    "Closure": {
        "closure": ((), ("_step_fn", "_zero_grad_fn", "_backward_fn")),
        "__call__": ((), ("closure", "_result")),
    },
    "ModelCheckpoint": {
        "on_train_batch_end": (
            ("trainer", "pl_module", "outputs", "batch", "batch_idx"),
            ("_every_n_train_steps", "_save_topk_checkpoint", "_save_last_checkpoint"),
        ),
    },
}


def why_not(trainer: Any) -> str:
    """Return why a loss means that all ranks are restarted; empty if it does not."""
    module, loop = trainer.lightning_module, trainer.fit_loop
    if not module.automatic_optimization:
        return "its optimization is manual"
    kind = type(trainer.strategy).__name__
    if kind != "DDPStrategy":
        return f"it trains by {kind}"
    names = {type(one).__name__ for one in trainer.callbacks}
    metric = getattr(sys.modules.get("torchmetrics"), "Metric", ())
    found = {
        "its model is compiled": any(
            hasattr(one, "_orig_mod") or one._compiled_call_impl is not None
            for one in module.modules()
        ),
        "its batches are read in training_step": "IterData" in type(loop._data_fetcher).__name__,
        "its data has no length": not math.isfinite(loop.max_batches),
        "the order of its data is not that of a DistributedSampler": not _is_ordered(loop),
        "reload_dataloaders_every_n_epochs is set": trainer.reload_dataloaders_every_n_epochs,
        "accumulate_grad_batches changes": "GradientAccumulationScheduler" in names,
        "the weights are averaged by a callback": any("Averaging" in one for one in names),
        "train_time_interval saves by the clock": any(
            one._train_time_interval is not None for one in savers_of(trainer)
        ),
        "a schedule follows a metric": any(
            one.reduce_on_plateau for one in trainer.lr_scheduler_configs
        ),
        "its optimizer computes the gradients more than once": "LBFGS"
        in type(trainer.optimizers[0]).__name__,
        "its model has a metric of torchmetrics": any(
            isinstance(one, metric) for one in module.modules()
        ),
    }
    why = next((why for why, is_so in found.items() if is_so), "")
    return why or why_unknown(kinds_of(loop)) or why_fixed(trainer.strategy.model)


def savers_of(trainer: Any) -> list[Any]:
    """Return the callbacks that save checkpoints in Lightning's own way."""
    kind = kinds_of(trainer.fit_loop)["ModelCheckpoint"]
    return [one for one in trainer.callbacks if isinstance(one, kind)]


def why_unknown(kinds: Mapping[str, type]) -> str:
    """Return which of the names that recovery needs is another here; empty if none is."""
    for kind, methods in PRIVATE.items():
        for name, needs in methods.items():
            found = getattr(kinds[kind], name, None)
            if found is None:
                return f"{kind}.{name} is missing in this version"
            label = f"{kind}.{name}"
            if why := why_changed(label, label, found, found, needs):
                return why
    return ""


def kinds_of(fit_loop: Any) -> dict[str, type]:
    """Return the classes of `PRIVATE` that a loop of a Trainer is made of."""
    epoch = fit_loop.epoch_loop
    automatic = type(epoch.automatic_optimization)
    callbacks = sys.modules[f"{_package(fit_loop)}.callbacks.model_checkpoint"]
    return {
        "_FitLoop": type(fit_loop),
        "_TrainingEpochLoop": type(epoch),
        "_AutomaticOptimization": automatic,
        "Closure": vars(sys.modules[automatic.__module__])["Closure"],
        "ModelCheckpoint": vars(callbacks)["ModelCheckpoint"],
    }


def _is_ordered(loop: Any) -> bool:
    """Tell whether the order of the data follows from the number of the epoch alone."""
    data: Any = sys.modules["torch.utils.data"]
    sampler: Any = sys.modules["torch.utils.data.distributed"]
    return all(
        isinstance(getattr(one, "sampler", None), sampler.DistributedSampler)
        and type(getattr(one, "batch_sampler", None)) is data.BatchSampler
        for one in loop._combined_loader.flattened
    )


def _package(loop: Any) -> str:
    return type(loop).__module__.partition(".loops.")[0]


class LoopCounts:
    """The progress of loops at one moment, as a copy of a few dozen numbers.

    Lightning's own `state_dict` makes deep copies, which takes a tenth of a small step.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._kept = [[values[name] for name in names] for values, names in counters]

    def put_back(self) -> None:
        """Make the progress as it was."""
        for (values, names), kept in zip(self._counters, self._kept, strict=True):
            values.update(zip(names, kept, strict=True))

    def read(self, state: Callable[[], Any]) -> Any:
        """Return what `state` returns of loops that are as they were."""
        now = LoopCounts(self._counters)
        self.put_back()
        try:
            return state()
        finally:
            now.put_back()


def counters_of(owner: Any) -> Counters:
    """Return what counts in a progress, or in a loop and all loops in it."""
    values = vars(owner)
    parts = [one for one in values.values() if is_dataclass(one) or _is_loop(one)]
    if _is_loop(owner):
        names = tuple(name for name in (_STEPPED,) if name in values)
    else:
        names = tuple(name for name, value in values.items() if isinstance(value, int))
    own: Counters = [(values, names)] if names else []
    return own + [counter for part in parts for counter in counters_of(part)]


def _is_loop(thing: Any) -> bool:
    return any(kind.__name__ == _LOOP for kind in type(thing).__mro__)


class EpochNumbers:
    """What a trainer has logged in this epoch; its tensors are replaced, never changed."""

    def __init__(self, trainer: Any) -> None:
        self._results = trainer.fit_loop.epoch_loop._results
        self._connector = trainer._logger_connector
        self._fx = self._connector._current_fx
        self._kept = [(key, one, dict(vars(one))) for key, one in self._results.items()]

    def put_back(self) -> None:
        """Make it as it was."""
        self._connector._current_fx = self._fx
        self._results.clear()
        for key, one, values in self._kept:
            self._results[key] = one
            vars(one).clear()
            vars(one).update(values)


class MicroBatch:
    """One batch of a unit, and what the trainer was like before it."""

    def __init__(
        self, trainer: Any, closure: Any, compute: Callable[..., Any], progress: Counters
    ) -> None:
        self.closure = closure
        self.compute = compute
        self._module = trainer.lightning_module
        self._forward = vars(self._module).get("forward")
        self._numbers = EpochNumbers(trainer)
        self._done = LoopCounts(progress)
        self._rng = generator_states()

    def put_back(self) -> None:
        """Make it as it was; a call that was interrupted may have left its own `forward`."""
        vars(self._module).pop("forward", None)
        if self._forward is not None:
            vars(self._module)["forward"] = self._forward
        self._numbers.put_back()
        self._done.put_back()
        restore_generators(self._rng)


class RedirectedDdp(RemadeDdp):
    """A DDP that calls `training_step` of its module in place of `forward`, once a call."""

    def __init__(self, ddp: Any, kept: Callable[[], Any]) -> None:
        super().__init__(ddp)
        self._kept_numbers = kept

    def prime(self, ddp: Any, args: Any, kwargs: Any) -> None:
        """Call it several times, as if it had been called once."""
        own = vars(self.module)
        if (once := own.get("forward")) is None:
            return

        def forward(*given: Any, **more: Any) -> Any:
            try:
                return once(*given, **more)
            finally:
                own["forward"] = forward

        own["forward"] = forward
        with self._kept_numbers():
            super().prime(ddp, args, kwargs)
        own["forward"] = once
