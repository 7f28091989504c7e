"""Lightning: what its Trainer logs, and the calls by which a training is followed.

Everything is resolved from the module that the program has imported, since `lightning` and
`pytorch_lightning` are the same code under two names. The program's own callbacks and loggers stay
as they are: what every Trainer calls is observed.
"""

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchloom.worker.programs.lightning_fit import SOURCE, ObservedFit
from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.threadlet.import_hook import when_imported


def install(name: str, module: Any, program: ObservedProgram) -> None:
    """Observe every Trainer of this process; `module` is `lightning.pytorch.trainer.trainer`."""
    adapter = LightningAdapter(program, module)
    adapter.install(module)
    when_imported("torch.utils.data._utils.fetch", adapter.randomness.install)


class LightningAdapter:
    """Observes the Trainers of this process, and the trainings that they run."""

    def __init__(self, program: ObservedProgram, module: Any) -> None:
        self._program = program
        self._version = str(getattr(module.pl, "__version__", ""))
        self._running: ObservedFit | None = None
        self._trainings = 0
        self.randomness = DatasetRandomness()

    def install(self, module: Any) -> None:
        """Wrap what all Trainers call, unless this version of Lightning lacks one of the names."""
        fit_loop, epoch_loop = module._FitLoop, module._TrainingEpochLoop
        fetcher = vars(sys.modules[fit_loop.__module__])["_DataFetcher"]
        wraps: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (module.Trainer, "fit", self._fit),
            (module.Trainer, "_run_stage", self._run_stage),
            (module.Trainer, "save_checkpoint", self._save_checkpoint),
            (module._LoggerConnector, "log_metrics", self._log_metrics),
            (module._CheckpointConnector, "resume_start", self._resume_start),
            (module._EvaluationLoop, "run", self._evaluate),
            (fit_loop, "on_run_start", self._begin_training),
            (fit_loop, "on_advance_start", self._begin_epoch),
            (fit_loop, "on_advance_end", self._end_epoch),
            (fit_loop, "on_run_end", self._end_training),
            (epoch_loop, "on_run_start", self._begin_batches),
            (epoch_loop, "on_advance_end", self._end_batch),
            (fetcher, "__iter__", self._iterate),
        )
        found = [(owner, name, getattr(owner, name), handle) for owner, name, handle in wraps]
        for owner, name, real, handle in found:
            setattr(owner, name, _wrapped(real, handle))

    def _of(self, trainer: Any) -> ObservedFit | None:
        """Return the training of a Trainer once it is set up, if it is observed."""
        one = self._running
        return one if one is not None and one.trainer is trainer and one.is_set_up else None

    # What a Trainer calls: each gets the real function, and has to call it.

    def _fit(self, real: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        if self._running is not None or not is_main:
            return real(trainer, *args, **kwargs)
        if any(getattr(one, "_early_exit", False) for one in trainer.callbacks):
            with self._program.apart():  # it only looks for a learning rate or a batch size
                return real(trainer, *args, **kwargs)
        self._trainings += 1
        one = ObservedFit(self._program, trainer, self._version, self._trainings)
        self._running = one
        try:
            with one.recoverable(self.randomness):
                result = real(trainer, *args, **kwargs)
            one.do(one.finish)
            return result
        finally:
            self._running = None
            one.do(one.leave)

    def _run_stage(self, real: Any, trainer: Any) -> Any:
        """Follow the loops from now on: before, callbacks may have searched with them."""
        if (one := self._running) is not None and one.trainer is trainer:
            one.do(one.set_up)
        return real(trainer)

    def _save_checkpoint(
        self,
        real: Any,
        trainer: Any,
        filepath: Any,
        weights_only: Any = None,
        *more: Any,
        **kw: Any,
    ) -> Any:
        result = real(trainer, filepath, weights_only, *more, **kw)
        if not weights_only and (one := self._of(trainer)) is not None:
            one.do(one.saved, filepath)
        return result

    def _log_metrics(self, real: Any, connector: Any, metrics: Any, step: Any = None) -> Any:
        """Record what every logger of a Trainer gets, also if it has none."""
        result = real(connector, metrics, step)
        try:
            if metrics:
                self._record(connector.trainer, metrics, step)
        except Exception as error:  # training continues without its numbers
            self._program.fault(SOURCE, error)
        return result

    def _record(self, trainer: Any, metrics: Mapping[str, Any], step: Any) -> None:
        """Record metrics with the step and the epoch that Lightning adds for its loggers."""
        values = dict(metrics)
        if step is None:
            step = values.pop("step", None)
        if step is None:
            values.setdefault("epoch", trainer.current_epoch)
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
        self._program.log(values, int(step))
        if (one := self._of(trainer)) is not None:
            one.logged(values)

    def _resume_start(
        self, real: Any, connector: Any, checkpoint_path: Any = None, *args: Any, **kw: Any
    ) -> Any:
        """Restore the checkpoint that the program names, else the one that the run resumes from."""
        one, found = self._running, None
        if one is not None and one.trainer is connector.trainer:
            found = one.resume(checkpoint_path)  # an error must not begin the training anew
        if found:
            checkpoint_path = found
            names = real.__code__.co_varnames[: real.__code__.co_argcount]
            if "weights_only" in names and (args or (None,))[0] is None:
                args, kw = (), {**kw, "weights_only": not _has_objects(found)}
        return real(connector, checkpoint_path, *args, **kw)

    def _evaluate(self, real: Any, loop: Any) -> Any:
        one = self._of(loop.trainer)
        if one is None:
            return real(loop)
        one.do(one.begin_evaluation)
        result = real(loop)
        one.do(one.end_evaluation)
        return result

    def _begin_training(self, real: Any, loop: Any) -> Any:
        one = self._of(loop.trainer)
        if one is not None and one.live is not None and one.live.is_joining:
            one.live.go()
        result = real(loop)
        if one is not None:
            one.do(one.begin)
            if one.live is not None:
                one.live.start()
        return result

    def _end_training(self, real: Any, loop: Any) -> Any:
        if (one := self._of(loop.trainer)) is not None and one.live is not None:
            one.live.finish(0)
        return real(loop)

    def _begin_epoch(self, real: Any, loop: Any) -> Any:
        if (one := self._of(loop.trainer)) is not None:
            one.do(one.position.begin_epoch)
        return real(loop)

    def _end_epoch(self, real: Any, loop: Any) -> Any:
        if (one := self._of(loop.trainer)) is None:
            return real(loop)
        if one.live is None:
            real(loop)
        else:
            one.live.end_epoch(functools.partial(real, loop))
        one.do(one.record)
        return None

    def _begin_batches(self, real: Any, loop: Any, fetcher: Any) -> Any:
        one = self._of(loop.trainer)
        if one is not None:
            one.do(one.position.begins)
        result = real(loop, fetcher)
        if one is not None:
            one.do(one.position.has_begun, loop, fetcher)
            if one.live is not None:
                one.live.skip(fetcher)
        return result

    def _end_batch(self, real: Any, loop: Any, *args: Any) -> Any:
        one = self._of(loop.trainer)
        if one is None:
            return real(loop, *args)
        if one.do(one.is_repeated, loop):
            return None
        if one.live is None:
            real(loop, *args)
        else:
            one.live.end_batch(functools.partial(real, loop, *args))
        if one.step != loop.trainer.global_step:
            one.do(one.end_step)
        return None

    def _iterate(self, real: Any, fetcher: Any) -> Any:
        if (one := self._running) is not None and one.is_set_up:
            one.do(one.position.creates, fetcher)
        return real(fetcher)


def _wrapped(real: Any, handle: Callable[..., Any]) -> Any:
    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return handle(real, self, *args, **kwargs)

    return call


def _has_objects(path: str) -> bool:
    """Tell whether a checkpoint of this run has values that torch loads only if it is trusted."""
    try:
        return bool(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not a file of torch.save: its own strategy loads it
        return True
