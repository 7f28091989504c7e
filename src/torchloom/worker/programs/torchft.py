"""torchft: the steps that its Manager counts, and what it commits and discards.

A step begins with a quorum. A replica that heals continues at the step of the others; a step that
is discarded is taken again. A Manager whose quorum covers several steps of the optimizer, as with
LocalSGD, does not count steps for the run: those of the optimizer are.
"""

import functools
import threading
from threading import get_ident
from typing import Any

from torchloom.worker.programs.program import ObservedProgram, Source, last_step
from torchloom.worker.threadlet.import_hook import when_imported

_SOURCE: Source = "torchft"


def install(name: str, module: Any, program: ObservedProgram) -> None:
    """Observe the Manager of this process; `module` is `torchft.manager`."""
    adapter = ManagerAdapter(program)
    adapter.install(module.Manager)
    when_imported("torch.optim.optimizer", adapter.watch)


class ManagerAdapter:
    """Follows the steps of the first Manager that begins one."""

    def __init__(self, program: ObservedProgram) -> None:
        self._program = program
        self._main = threading.main_thread().ident
        self._manager: Any = None
        self._is_leading = False  # its steps are those of the run
        self._returns = 0  # of optimizers' steps, since the last quorum
        self._discarded = 0

    def install(self, manager: Any) -> None:
        """Wrap what programs and torchft's own optimizers call."""
        start, commit = manager.start_quorum, manager.should_commit

        @functools.wraps(start)
        def start_quorum(one: Any, *args: Any, **kwargs: Any) -> Any:
            self._do(self._begin, one)
            result = start(one, *args, **kwargs)
            self._do(self._reach, one)  # it may have healed
            return result

        @functools.wraps(commit)
        def should_commit(one: Any, *args: Any, **kwargs: Any) -> Any:
            is_committed = commit(one, *args, **kwargs)
            self._do(self._record, one, is_committed)
            return is_committed

        manager.start_quorum, manager.should_commit = start_quorum, should_commit

    def watch(self, module: Any) -> None:
        """Count the steps of the optimizers."""
        module.register_optimizer_step_post_hook(self._returned)

    def _returned(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Post hook of an optimizer's step: the Manager has committed it before."""
        if self._is_leading and get_ident() == self._main:
            self._returns += 1
            self._do(self._reach if self._returns == 1 else self._yield, self._manager)

    def _do(self, act: Any, manager: Any, *given: Any) -> None:
        """Call a method; after an error in it, the steps of the optimizers count again."""
        if get_ident() != self._main or manager is not (self._manager or manager):
            return
        try:
            act(manager, *given)
        except Exception as error:  # training continues unobserved
            self._main = None
            self._program.end(_SOURCE)
            self._program.fault(_SOURCE, error)

    def _begin(self, manager: Any) -> None:
        """Begin at the Manager's step, which a checkpoint of the program may have restored."""
        if self._manager is None:
            self._manager = manager
            self._is_leading = self._program.begin(_SOURCE, manager.current_step())
        self._returns = 0
        self._reach(manager)

    def _reach(self, manager: Any, before: int = 0) -> None:
        """Pass the boundary of the Manager's step, or of one before."""
        if self._is_leading:
            self._program.reach(_SOURCE, manager.current_step() - before)
            if self._program.step >= last_step():
                self._program.threadlet.optimizers.stop()

    def _yield(self, manager: Any) -> None:
        """Let the steps of the optimizer count, of which one quorum covers several."""
        self._is_leading = False
        self._program.end(_SOURCE)
        self._program.threadlet.reach(self._program.step + self._returns)

    def _record(self, manager: Any, is_committed: bool) -> None:
        """Record the numbers of a step that is committed; its quorum is complete by now.

        A replica that has healed takes this step with the others: with the same values of knobs.
        """
        step = manager.current_step() - is_committed
        if not is_committed or step != self._program.own_step:
            self._program.discard()  # its loss is not one of the training
        if not is_committed:
            self._discarded += 1
            return
        self._reach(manager, before=1)
        numbers = {
            "torchft/participants": manager.num_participants(),
            "torchft/batches_committed": manager.batches_committed(),
            "torchft/discarded": self._discarded,
        }
        self._program.log(numbers, step)
