"""The parts of a step that Lightning's `Trainer` repeats with new members.

What a batch changes beside the gradients is put back before it is computed again.
"""

from collections.abc import Callable
from typing import Any

from torchloom.worker.recovery.ddp import RemadeDdp
from torchloom.worker.run.rng import generator_states, restore_generators


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

    def __init__(self, trainer: Any, closure: Any, compute: Callable[..., Any]) -> None:
        self.closure = closure
        self.compute = compute
        self._module = trainer.lightning_module
        self._forward = vars(self._module).get("forward")
        self._numbers = EpochNumbers(trainer)
        self._progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
        self._done = self._progress.state_dict()
        self._rng = generator_states()

    def put_back(self) -> None:
        """Make it as it was; a call that was interrupted may have left its own `forward`."""
        vars(self._module).pop("forward", None)
        if self._forward is not None:
            vars(self._module)["forward"] = self._forward
        self._numbers.put_back()
        self._progress.load_state_dict(self._done)
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
