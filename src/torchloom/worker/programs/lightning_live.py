"""Live recovery of Lightning's `Trainer`, without a line in the program.

The unit that is repeated goes from what the ranks ask each other before a step's first batch to its
last backward pass. A newcomer runs the program on a stand-in group, goes to the epoch and the batch
of the others, and joins them at its first unit.
"""

import contextlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchloom.worker.programs.checkpoints import TrainerCheckpoints
from torchloom.worker.programs.lightning_parts import (
    Counters,
    EpochNumbers,
    LoopCounts,
    MicroBatch,
    RedirectedDdp,
    counters_of,
    savers_of,
    why_not,
)
from torchloom.worker.programs.live import LiveTraining, nothing
from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.recovery import standin
from torchloom.worker.recovery.transfer.channels import State

_SAVER = (  # what a checkpoint callback of Lightning remembers
    *("best_k_models", "kth_best_model_path", "best_model_score", "best_model_path", "dirpath"),
    *("current_score", "last_model_path", "kth_value", "_last_global_step_saved"),
    *("_last_checkpoint_saved", "_defer_save_until_validation"),
)
_SHOWN = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_SUMS = ("value", "cumulated_batch_size")  # of a number that is logged for an epoch
_LOADERS = "combined_loader"
_ALONE = ("broadcast", "reduce", "reduce_boolean_decision")  # of a strategy, in a set-up
_PACKAGES = ("lightning", "pytorch_lightning")
_EVALUATED = "a rank was lost before the end of an evaluation"
_EPOCH_ENDED = "a rank was lost at the end of an epoch"
_SAVED = "a rank was lost before a checkpoint on demand was saved"
_ENDS_EPOCH = "a rank was lost before a checkpoint at the end of an epoch"


class LiveFit(LiveTraining):
    """One call of `Trainer.fit`; what it calls is wrapped as long as it trains."""

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
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._is_carried = False  # its steps are units
        self._parts: list[MicroBatch] = []  # of this unit, as far as they have begun
        self._begun: LoopCounts | None = None  # the loops as this unit began
        self._counters: Counters = []  # of all loops
        self._steps: Counters = []  # of the optimizer
        self._taken: Any = None  # what a step has given that a peer has finished
        self._schedules: list[Any] = []  # that step no more, until the next unit
        self._why_fixed = ""  # why what is done between two units is not done again
        self._batch = 0  # of its epoch, at which a newcomer begins
        self._sums: State = {}  # of a newcomer's epoch, for its first unit
        self._sums_at = -1  # that unit
        self._ended: State = {}  # the loops of a peer, for a newcomer
        self._wrapped: list[tuple[Any, str]] = []

    # Around one call of `fit`.

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap what the loops call during one training."""
        self._ask_own = self._epoch._broadcast_sigterm_tensor
        self._make_own = self._epoch.automatic_optimization._make_closure
        self._wrap(self._epoch, "_broadcast_sigterm_tensor", self._meet)
        self._wrap(self._epoch.automatic_optimization, "_make_closure", self._closure)
        if self.is_joining:
            self._trainer.num_sanity_val_steps = 0
            strategy = self._trainer.strategy
            for name in _ALONE:
                self._wrap(strategy, name, _alone(name, getattr(strategy, name)))
        try:
            yield
        finally:
            for owner, name in self._wrapped:
                vars(owner).pop(name, None)
            self._step_again()
            self.leave()

    def _wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        vars(owner)[name] = function
        self._wrapped.append((owner, name))

    def why_not(self) -> str:
        """Return why a loss means that all ranks are restarted; empty if it does not."""
        return why_not(self._trainer)

    def carry(self) -> None:
        trainer = self._trainer
        things = {"optimizer": trainer.optimizers[0]}
        for at, config in enumerate(trainer.lr_scheduler_configs):
            things[f"schedule{at}"] = config.scheduler
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            things["scaler"] = scaler
        self.track(RedirectedDdp(trainer.strategy.model, self._kept_numbers), **things)
        for one in self._savers():
            self._wrap(one, "on_train_batch_end", self._saving(one, one.on_train_batch_end))
        self._counters = counters_of(self._fit)
        self._steps = counters_of(self._epoch.automatic_optimization.optim_progress)
        self._is_carried = self._recovery is not None

    def _savers(self) -> list[Any]:
        return savers_of(self._trainer)

    @property
    def _fetcher(self) -> Any:
        return self._fit._data_fetcher

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let SIGTERM end this process while it waits for the others.

        Lightning's handler notes it for the next batch, and none comes if all ranks are restarted.
        """

        def end(signum: int, _: object) -> None:
            self.send_records()
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

        known = signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, known if known is not None else signal.SIG_DFL)

    # The position of a newcomer.

    def go(self) -> None:
        """Set the loops to the epoch in which the others are, before the training begins."""
        start = self.foresee()
        assert start is not None
        own = start - self._program.at(0)
        each = self._trainer.accumulate_grad_batches
        epoch, steps = divmod(own, max(1, math.ceil(self._fit.max_batches / each)))
        self._batch = steps * each
        count = self._epoch.automatic_optimization.optim_progress.optimizer.step.total
        count.ready = count.completed = own
        for progress in (self._fit.epoch_progress.total, self._fit.epoch_progress.current):
            progress.ready = progress.started = progress.processed = progress.completed = epoch
        if self._fit.done:
            self.unfit = "a rank was lost after the last step"
            self._arrive(0)

    def skip(self, fetcher: Any) -> None:
        """Read what the others have read of this epoch, before a newcomer's first batch."""
        if not self.is_joining:
            return
        for _ in range(self._batch):
            next(fetcher)
        now = self._epoch.batch_progress.current
        now.ready = now.started = now.processed = now.completed = self._batch

    # What the loops call.

    def _meet(self) -> None:
        """Begin a unit: ask whether a rank has to end, once before each step."""
        if not self._is_carried:
            if self.is_joining:
                raise RuntimeError("loom: cannot join the others: its training is not observed")
            self._ask_own()
            return
        progress = self._epoch.batch_progress
        if progress.current.ready % self._trainer.accumulate_grad_batches:
            return
        self._step_again()
        self.enter_unit(0)
        self._parts.clear()
        self._begun = LoopCounts(self._counters)
        self.check_data()
        self.attempt(self._ask, self._ask)

    def _ask(self) -> None:
        trainer = self._trainer
        ends = torch.tensor([int(trainer.received_sigterm)], device=trainer.strategy.root_device)
        torch.distributed.broadcast(ends, src=0)
        if ends.item():
            with contextlib.suppress(RuntimeError):
                torch.distributed.barrier()  # all ranks end here
            raise vars(sys.modules[type(self._epoch).__module__])["SIGTERMException"]

    def _closure(self, kwargs: Any, optimizer: Any, batch_idx: int) -> Any:
        """Return what computes the gradients of a batch, and can do it again."""
        closure = self._make_own(kwargs, optimizer, batch_idx)
        if not self._is_carried:
            return closure
        compute, backward = closure.closure, closure._backward_fn
        is_first, is_last = not self._parts, not self._epoch._should_accumulate()

        def noted(loss: Any) -> Any:
            if is_first and self._at == self._sums_at:
                self._add_sums()
            if is_last:
                self.note()
            return backward(loss)

        def attempted(*args: Any, **kw: Any) -> Any:
            if not self.is_live:
                return compute(*args, **kw)
            self._parts.append(MicroBatch(self._trainer, closure, compute, self._steps))
            with self.things.before_gradients():
                return self.attempt(compute, self._again)

        closure._backward_fn = noted if backward is not None else None
        closure.closure = attempted
        return closure

    def _again(self) -> Any:
        """Compute the gradients of this unit again, with the new members."""
        if self._taken is not None:
            result, self._taken = self._taken, None
            return result
        self._ask()
        for one in self._parts[:-1]:
            one.put_back()
            with self._trainer.strategy.block_backward_sync():
                one.compute()
        self._parts[-1].put_back()
        return self._parts[-1].compute()

    def _saving(self, saver: Any, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return what saves with all ranks after a step, and can do it again."""
        at = self._savers().index(saver)

        def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            given = trainer, module, outputs, batch, batch_idx
            every = saver._every_n_train_steps
            is_due = every > 0 and trainer.global_step % every == 0
            if not is_due or not self.is_live or self._epoch._should_accumulate():
                real(*given)
                return
            begun, is_again = _plain(saver), False
            loops = self._loops()
            handed = {"at": at, "batch": batch_idx, "saver": begun, "loops": loops}
            handed["shown"] = self._shown()

            def act() -> None:
                nonlocal is_again
                if is_again:
                    vars(saver).update(begun)
                is_again = True
                real(*given)

            is_last = self._epoch._num_ready_batches_reached()
            if is_last or self._epoch._should_check_val_fx(self._fetcher):
                self._why_fixed = _ENDS_EPOCH if is_last else _EVALUATED
            self.pass_between(act, lambda: handed)
            self._why_fixed = ""

        return save

    def end_batch(self, real: Callable[[], None]) -> None:
        """Do what follows a batch, with its evaluation."""
        if self.is_live and self._epoch._should_check_val_fx(self._fetcher):
            self._pass_once(_EVALUATED, real)
        else:
            real()

    def end_epoch(self, real: Callable[[], None]) -> None:
        """Do what follows an epoch."""
        self._pass_once(_EPOCH_ENDED, real)

    def save(self, real: Callable[[], None]) -> None:
        """Save a checkpoint on demand."""
        self._pass_once(_SAVED, real)

    def _pass_once(self, why: str, real: Callable[[], None]) -> None:
        """Do with the other ranks what is not done again if one of them is lost."""
        if not self.is_live:
            real()
            return
        self._why_fixed = why
        self.pass_between(real, dict)
        self._why_fixed = ""

    # As `LiveTraining` needs it.

    def reached(self) -> int:
        """Return how many steps of the run are done."""
        return self._program.at(int(self._trainer.global_step))

    def own_state(self) -> State:
        """Return what this rank has added up in this epoch."""
        found = {}
        for key, one in self._epoch._results.items():
            if not one.is_tensor:
                self.unfit = "a metric of torchmetrics is logged"
            elif one.meta.on_epoch:
                found[key] = {name: vars(one)[name] for name in _SUMS if name in vars(one)}
        return {"sums": found}

    def common_state(self) -> State:
        """Return the loops, the numbers and the callbacks, as the next unit begins with them."""
        is_unit = self._at >= 0
        others = [one for one in self._trainer.callbacks if one not in self._savers()]
        return {
            "loops": self._begun.read(self._loops) if is_unit and self._begun else self._loops(),
            "is_between": not is_unit,
            "shown": self._shown(),
            "savers": [_plain(one) for one in self._savers()],
            "callbacks": [one.state_dict() for one in others],
        }

    def take_state(self, common: State, own: State | None) -> None:
        """Continue as the trainer of a peer, with this rank's own numbers."""
        for owner, name in self._wrapped:
            if owner is self._trainer.strategy:
                vars(owner).pop(name, None)
        now = self._epoch.batch_progress.current.ready, self._fit.epoch_progress.current.ready
        self._put_loops(common["loops"], common["is_between"])
        there = self._epoch.batch_progress.current.ready, self._fit.epoch_progress.current.ready
        if now != there:
            raise RuntimeError(f"loom: the others are at {there} of batches and epochs, not {now}")
        self._ended = {name: common[name] for name in ("loops", "is_between")}
        self._put_shown(common["shown"])
        for one, state in zip(self._savers(), common["savers"], strict=True):
            vars(one).update(state)
        others = [one for one in self._trainer.callbacks if one not in self._savers()]
        for one, state in zip(others, common["callbacks"], strict=True):
            one.load_state_dict(state)
        self._sums = own["sums"] if own is not None and self._batch else {}
        self._sums_at = self.reached()

    def redo_as_newcomer(self, interlude: State) -> None:
        """Save with the others."""
        saver, trainer = self._savers()[interlude["at"]], self._trainer
        vars(saver).update(interlude["saver"])
        self._put_loops(interlude["loops"], False)
        self._put_shown(interlude["shown"])
        real = type(saver).on_train_batch_end
        real(saver, trainer, trainer.lightning_module, None, None, interlude["batch"])
        self._put_loops(self._ended["loops"], self._ended["is_between"])

    def take_step(self, common: State, load: Callable[[], None]) -> None:
        """Compute this rank's numbers alone, then take what the step gave."""
        if self._epoch._should_accumulate() or "scaler" in self.things.tracked:
            raise RuntimeError("loom: the others have finished this step")
        strategy = self._trainer.strategy
        ddp, strategy.model = strategy.model, strategy.lightning_module
        try:
            for one in self._parts:
                one.put_back()
                with torch.enable_grad():
                    self._taken = one.closure._step_fn()
        finally:
            strategy.model = ddp
        load()
        for config in self._trainer.lr_scheduler_configs:
            vars(config.scheduler)["step"] = nothing
            self._schedules.append(config.scheduler)

    def _step_again(self) -> None:
        """Let the schedules step from now on."""
        for one in self._schedules:
            vars(one).pop("step", None)
        self._schedules.clear()

    def why_broken(self) -> str:
        """Return why an interrupted interlude cannot be done again; empty if it can."""
        return self._why_fixed

    # Parts of a trainer's state.

    def _loops(self) -> State:
        """Return the progress of all loops."""
        state: State = self._fit.state_dict()
        state["state_dict"].pop(_LOADERS, None)
        return state

    def _put_loops(self, state: State, is_between: bool) -> None:
        """Continue at the progress of a peer; `is_between`: complete its last batch first."""
        loop, epoch = self._fit, self._epoch
        loop.load_state_dict(state)
        loop.restarting = False
        for one in (loop, epoch, epoch.automatic_optimization, epoch.val_loop):
            one._loaded_from_state_dict = one._resuming_from_checkpoint = False
        epoch.manual_optimization._loaded_from_state_dict = False
        epoch.manual_optimization._resuming_from_checkpoint = False
        if is_between:
            for progress in (epoch.batch_progress.total, epoch.batch_progress.current):
                progress.completed = progress.processed
            epoch._batches_that_stepped += 1

    def _shown(self) -> State:
        connector = self._trainer._logger_connector
        return {name: dict(getattr(connector, name)) for name in _SHOWN}

    def _put_shown(self, shown: State) -> None:
        for name in _SHOWN:
            setattr(self._trainer._logger_connector, name, dict(shown[name]))

    def _add_sums(self) -> None:
        """Add what this rank's process before had added up in this epoch."""
        for key, sums in self._sums.items():
            one = self._epoch._results[key]
            is_sum = one.meta.is_mean_reduction or one.meta.is_sum_reduction
            for name, before in sums.items():
                now = getattr(one, name)
                setattr(one, name, before + now if is_sum else one.meta.reduce_fx(before, now))

    @contextlib.contextmanager
    def _kept_numbers(self) -> Iterator[None]:
        """Undo in the end what is logged in the block."""
        numbers = EpochNumbers(self._trainer)
        yield
        numbers.put_back()


def _plain(saver: Any) -> State:
    """Return what a checkpoint callback remembers."""
    found = {name: vars(saver)[name] for name in _SAVER if name in vars(saver)}
    if isinstance(found.get("best_k_models"), dict):
        found["best_k_models"] = dict(found["best_k_models"])
    return found


def _alone(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return what Lightning's own set-up calls in the place of a collective."""

    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not standin.is_on() or caller.split(".")[0] not in _PACKAGES:
            return real(value, *args, **kwargs)
        return value

    call.__name__ = name
    return call
