"""Numbers of plain loops, observed at torch's own functions: loss, gradient norm, batches.

The loss of a step is the sum of the scalars on which `backward` was called since the step before:
programs that accumulate divide by the number of batches themselves. It is this rank's own number.
"""

import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.threadlet.import_hook import when_imported

_UNSCALED = "_loom_unscaled"  # an attribute of a scaled loss: the tensor before it was scaled
_AHEAD = 64  # batches of an iterator that were read and not trained on
_SEVERAL = (tuple, list)
_DEEPEST = 4  # containers in a batch around its first tensor


def install(name: str, module: Any, program: ObservedProgram) -> None:
    """Observe one kind of numbers in the module that has the functions for it."""
    match name:
        case "loss":
            LossTap(program).install(module)
        case "grad_norm":
            _install_norm(module, program)
        case "batches":
            gauge = BatchGauge()
            gauge.install(module)
            program.threadlet.vitals.gauges.append(gauge)


class LossTap:
    """Adds up what `backward` is called on, and records the sum in the optimizer's next step."""

    def __init__(self, program: ObservedProgram) -> None:
        self._program = program
        self._main = threading.main_thread().ident
        self._sum: Any = None  # a number, or a tensor on its device
        self._discarded = 0  # of the program, when that began
        self._open: Any = None  # the optimizer whose step runs, if it may call a closure
        self._at = 0  # the step of that

    def install(self, autograd: Any) -> None:
        """Observe `backward`, the steps of optimizers, and what a scaler does to a loss."""
        _observe_backward(autograd, self.see)
        when_imported("torch.optim.optimizer", self._watch)
        when_imported("torch.amp.grad_scaler", self._watch_scaler)

    def see(self, tensors: Any) -> None:
        """Add a loss on which the program calls `backward`, before it does."""
        if get_ident() != self._main:
            return
        try:
            for tensor in tensors if isinstance(tensors, _SEVERAL) else (tensors,):
                if tensor.numel() == 1:
                    self._add(getattr(tensor, _UNSCALED, tensor))
            if self._open is not None and self._sum is not None:
                self._record(self._open)  # of a closure, the first call counts
        except Exception as error:  # training continues without its loss
            self._give_up(error)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Pre hook of an optimizer's step: record the loss since the last step.

        What its closure calls `backward` on belongs to it, too.
        """
        if get_ident() == self._main:
            self._forget_discarded()
            if len(args) > 1 or kwargs:  # the first one is the optimizer itself
                self._open, self._at = optimizer, self._program.step
            elif self._sum is not None:
                self._record(optimizer)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Post hook of an optimizer's step: what comes now belongs to the next one."""
        if get_ident() == self._main:
            if self._open is not None and self._sum is not None:
                self._record(optimizer, self._at)  # it called no closure
            self._open = self._sum = None

    def _add(self, tensor: Any) -> None:
        self._forget_discarded()
        # On the CPU the number costs less than a copy; elsewhere it is not waited for.
        value = tensor.item() if tensor.is_cpu else tensor.detach()
        if self._sum is not None:
            self._sum = self._sum + value
        else:
            self._sum = value if tensor.is_cpu else value.clone()

    def _forget_discarded(self) -> None:
        if self._program.discarded != self._discarded:
            self._sum, self._discarded = None, self._program.discarded

    def _record(self, optimizer: Any, step: int | None = None) -> None:
        value, self._sum, self._open = self._sum, None, None
        number = self._program.threadlet.optimizers.number(optimizer)
        self._program.measure("loss" if number <= 1 else f"opt{number}.loss", value, step)

    def _watch(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.before)
        module.register_optimizer_step_post_hook(self.after)

    def _watch_scaler(self, module: Any) -> None:
        """Remember what was scaled, and drop the loss of a step that the scaler skips."""
        scaler = module.GradScaler
        scale, step = scaler.scale, scaler.step

        @functools.wraps(scale)
        def scaled(self_: Any, outputs: Any) -> Any:
            result = scale(self_, outputs)
            if result is not outputs and hasattr(outputs, "detach"):
                setattr(result, _UNSCALED, outputs.detach())
            return result

        @functools.wraps(step)
        def stepped(self_: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(self_, optimizer, *args, **kwargs)
            self._sum = None
            return result

        scaler.scale, scaler.step = scaled, stepped

    def _give_up(self, error: BaseException) -> None:
        self._main = None
        self._program.fault("loss", error)


def _observe_backward(autograd: Any, see: Callable[[Any], None]) -> None:
    """Call `see` with what `torch.autograd.backward` is called on, before it runs.

    `Tensor.backward` looks this function up when it is called. The compiler of torch must not
    compile what observes the program.
    """
    real = autograd.backward
    seen = [see]

    @functools.wraps(real)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if grad_tensors is None:
            seen[0](tensors)
        return real(tensors, grad_tensors, *args, **kwargs)

    def hide(dynamo: Any) -> None:
        seen[0] = dynamo.disable(see)

    autograd.backward = backward
    when_imported("torch._dynamo", hide)


def _install_norm(module: Any, program: ObservedProgram) -> None:
    real = module.clip_grad_norm_

    @functools.wraps(real)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = real(*args, **kwargs)
        if isinstance(norm, sys.modules["torch"].Tensor) and norm.numel() == 1:
            program.measure("grad_norm", norm.item() if norm.is_cpu else norm)
        return norm

    module.clip_grad_norm_ = module.clip_grad.clip_grad_norm_ = clip_grad_norm_


class BatchGauge:
    """Counts the samples that this rank trains on, as its DataLoader deals them."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._dealt: weakref.WeakKeyDictionary[Any, deque[int]] = weakref.WeakKeyDictionary()
        self._next: deque[int] = deque()  # samples of the last iterator's batches, not trained on
        self._size = 0  # samples of the last batch that was trained on
        self._samples = 0
        self._at = time.monotonic()

    def install(self, module: Any) -> None:
        """Observe the iterator of `DataLoader`, and `backward` to know what is trained on."""
        iterator = module._BaseDataLoaderIter
        real = iterator.__next__
        dealt = self.dealt

        @functools.wraps(real)
        def advance(self_: Any) -> Any:
            batch = real(self_)
            dealt(self_, batch)
            return batch

        iterator.__next__ = advance
        when_imported("torch.autograd", lambda autograd: _observe_backward(autograd, self.trained))

    def dealt(self, iterator: Any, batch: Any) -> None:
        """Note a batch; some programs read several batches before they train on the first."""
        if get_ident() == self._main:
            if (sizes := self._dealt.get(iterator)) is None:
                sizes = self._dealt[iterator] = deque(maxlen=_AHEAD)
            sizes.append(size_of(batch))
            self._next = sizes

    def trained(self, tensors: Any) -> None:
        """Count a batch of the iterator that was used last: `backward` is called on its result.

        An evaluation is followed by another batch of the training before the next `backward`.
        """
        if self._next and get_ident() == self._main:
            self._size = self._next.popleft()
            self._samples += self._size

    def read(self) -> dict[str, float]:
        """Return the numbers since the last call; none before a DataLoader is used."""
        now, samples = time.monotonic(), self._samples
        before, self._at, self._samples = self._at, now, 0
        if not self._size:
            return {}
        rate = samples / (now - before)
        return {"loom/samples_per_second": rate, "loom/batch_size": float(self._size)}


def size_of(batch: Any) -> int:
    """Return the number of samples of a batch: the first dimension of its first tensor; else 0."""
    for _ in range(_DEEPEST):
        if isinstance(batch, _SEVERAL):
            batch = batch[0] if batch else None
        elif hasattr(batch, "shape") or not hasattr(batch, "values"):
            break
        else:
            batch = next(iter(batch.values()), None)
    shape: Any = getattr(batch, "shape", ())
    return int(shape[0]) if len(shape) else 0
