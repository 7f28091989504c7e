"""What a training program writes: `loom.init()`, and a run with steps, numbers and knobs."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from torchloom.bus.messages import Value
from torchloom.worker.threadlet.arrival import when_imported
from torchloom.worker.threadlet.knobs import Config
from torchloom.worker.threadlet.submitted import Submitted, submitted
from torchloom.worker.threadlet.threadlet import Threadlet, current

_run: "Run | None" = None


def seat_of_a_stranger(env: Mapping[str, str]) -> dict[str, str]:
    """Return where a rank belongs that nobody of ours started; looked for only then."""
    from torchloom.worker.threadlet import stranger

    return stranger.seat(env)


def names_of_a_stranger() -> dict[str, Value]:
    """Return what such a rank's job is called, and whose it is."""
    from torchloom.settings import user_name
    from torchloom.worker.threadlet.stranger import script_name

    return {"name": script_name(), "owner": user_name()}


def init(
    project: str = "", config: Mapping[str, Any] | None = None, replica: str | int = ""
) -> "Run":
    """Return the run this process belongs to; its config's values are knobs.

    What a submitted job says goes before that: its hyperparameters are in the config, its knobs
    are offered. A rank that nobody of ours started is known to this user's plane all the same, as
    one of a job that has the script's name: a notebook, a script under torchrun, mpirun or srun.
    """
    global _run
    if _run is None:
        threadlet = current(seat_of_a_stranger)
        when_imported("torch.optim.optimizer", threadlet.watch)
        spec = submitted(os.environ)
        _run = Run(threadlet, project, spec)
        threadlet.event("init", {"project": project})
        for name, knob in spec.knobs.items():
            _run.knob(name, knob.get("value"), knob.get("min"), knob.get("max"))
        if threadlet.seat.agent and "LOOM_JOB" not in os.environ:
            threadlet.event("job", names_of_a_stranger())
    if replica != "":
        current().join(str(replica))
    for name, value in (config or {}).items():
        if name not in _run.submitted.knobs:
            _run.knob(name, _run.submitted.hyperparameters.get(name, value))
    return _run


class Step:
    """One step of a run; `with step:` says that it is done when the block is left."""

    __slots__ = ("_run", "batch", "epoch", "number")

    def __init__(self, run: "Run", number: int, epoch: int, batch: Any) -> None:
        self._run = run
        self.number = number
        self.epoch = epoch
        self.batch = batch

    def log(self, **values: Any) -> None:
        """Note numbers of this step; see `Run.log`."""
        self._run.add(self.number, values)

    def __enter__(self) -> "Step":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._run.applied = self.number + 1


class Run:
    """A run as the training program sees it."""

    def __init__(self, threadlet: Threadlet, project: str, spec: "Submitted | None" = None) -> None:
        self.submitted = spec or Submitted()
        self.project = project
        self.id = threadlet.seat.job
        self.config = Config(threadlet.knobs, self.submitted.hyperparameters)
        self.applied = 0  # steps that are done
        self.add = threadlet.notes.add
        self._threadlet = threadlet
        self._boundary = threadlet.boundary
        self._next = 0

    def log(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Note numbers of the current step; never waits, never raises, reads no tensor.

        A tensor of one number is kept as it is now and read when its device is done with it.
        """
        self.add(self._boundary.step, {**values, **more} if values else more)

    def knob(
        self,
        name: str,
        value: Value,
        min: float | None = None,  # noqa: A002
        max: float | None = None,  # noqa: A002
    ) -> Value:
        """Offer a value of the config that may be changed from outside, within a range."""
        knob = self._threadlet.knobs.declare(name, value, min, max)
        self._threadlet.acts.make_up()
        self._threadlet.introduce()
        return knob.value

    def on(self, name: str, fn: Callable[[Any], object], type: type | None = None) -> None:  # noqa: A002
        """Call a function with the new value of a knob, in this thread, at the step's boundary.

        `checkpoint` is called with the step's number when somebody wants one now.
        """
        self._threadlet.on(name, fn, type)

    def event(self, kind: str, **facts: Value) -> None:
        """Say that something happened in this step."""
        self._threadlet.event(kind, facts)

    def steps(self, source: int | Iterable[Any], epochs: int = 1) -> Iterator[Step]:
        """Yield steps: so many, or one for each batch of a loader, over some epochs.

        Commands act between two steps. When the run is told to stop, the loop ends as if the
        data had, and the program goes on behind it.
        """
        self._threadlet.follow_program()
        dealt = _deal(source, epochs)
        while self._goes_on():
            epoch, batch = next(dealt, (None, None))
            if epoch is None:
                return
            try:
                yield Step(self, self._next, epoch, batch)
            except GeneratorExit:
                self._leave()
                raise
            self._next += 1
            self.applied = self._next

    def _leave(self) -> None:
        """Count the step behind which a program leaves its loop by itself."""
        if self.applied > self._next:
            self._next = self.applied
            self._boundary.reach(self._next, self.applied)

    def _goes_on(self) -> bool:
        """Pass to the beginning of the next step; tell whether it is to be taken."""
        if self._boundary.reach(self._next, self.applied):
            self._threadlet.attend()
        return not self._threadlet.acts.stopping


def _deal(source: int | Iterable[Any], epochs: int) -> Iterator[tuple[int, Any]]:
    for epoch in range(epochs):
        sampler: Any = getattr(source, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for batch in range(source) if isinstance(source, int) else source:
            yield epoch, batch
