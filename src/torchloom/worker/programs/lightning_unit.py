"""The parts of a step that Lightning's `Trainer` repeats with new members.

What a batch changes beside the gradients is put back before it is computed again.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from torchloom.worker.recovery.ddp import RemadeDdp
from torchloom.worker.run.rng import generator_states, restore_generators

_LOOP = "_Loop"  # Lightning's class of all loops
_STEPPED = "_batches_that_stepped"  # a count of a loop itself
Counters = list[tuple[dict[str, Any], tuple[str, ...]]]  # attributes of an object, some of them


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
