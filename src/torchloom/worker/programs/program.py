"""What adapters report about the program of this process.

Adapters call `ObservedProgram`; it decides what counts. Of several sources for the program's own
steps the most trusted one counts, and a number that the program logs itself is never replaced by
one that an adapter measures.
"""

import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from torchloom.worker.environment import ATTACH_SKIP_VARIABLE, UNTIL_VARIABLE, text
from torchloom.worker.threadlet.commands import TrainerActs
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.threadlet import Threadlet, current

# Where the number of a step is from. `run.steps` has priority over all of them.
Source = Literal["count", "program", "torchft", "lightning", "transformers"]
_TRUST: Mapping[Source, int] = {
    "count": 0,
    "program": 1,
    "torchft": 2,
    "lightning": 3,
    "transformers": 4,
}
_SECRET = re.compile(
    "(?:^|[_-])(?:token|secret|password|api_?key|(?:secret|access|private)_key|credentials?)$",
    re.IGNORECASE,
)
_TORCH = (  # what is observed in torch itself, and the module whose functions are wrapped
    ("loss", "torch.autograd"),
    ("grad_norm", "torch.nn.utils"),
    ("batches", "torch.utils.data.dataloader"),
)


class ObservedProgram:
    """The program of this process, as its adapters see it."""

    def __init__(self, threadlet: Threadlet) -> None:
        self.threadlet = threadlet
        self._source: Source = "count"
        self._offset = 0  # steps of trainings that this process has ended
        self._named: set[str] = set()  # numbers that the program logs itself
        self.discarded = 0  # steps that an optimizer does not take, or not with this gradient
        self._total: int | None = None
        self._installed: set[tuple[str, str]] = set()
        self._noted: set[str] = set()  # adapters whose fault was noted

    def install(self, name: str, adapter: str, module: Any) -> None:
        """Install an adapter in the module that it observes, unless the user has skipped it."""
        skipped = {word.strip() for word in text(ATTACH_SKIP_VARIABLE).split(",")}
        if name in skipped or (name, module.__name__) in self._installed:
            return
        self._installed.add((name, module.__name__))
        try:
            code: Any = importlib.import_module(f"torchloom.worker.programs.{adapter}")
            code.install(name, module, self)
        except Exception as error:  # training continues without this adapter
            self.fault(name, error)

    def observe_torch(self) -> None:
        """Install what needs no framework: the numbers of plain loops."""
        for name, module in _TORCH:
            when_imported(module, functools.partial(self.install, name, "plain"))

    def fault(self, adapter: str, error: BaseException) -> None:
        """Note once on standard error that an adapter failed; training continues without it."""
        if adapter not in self._noted:
            self._noted.add(adapter)
            why = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"loom: {adapter} is not observed, training continues: {why}\n")

    # Numbers.

    @property
    def step(self) -> int:
        """The current step."""
        return self.threadlet.boundary.step

    def at(self, step: int) -> int:
        """Return the number of a step of the present training among all steps of this process."""
        return step + self._offset

    @property
    def own_step(self) -> int:
        """The current step as the present training counts it."""
        return self.step - self._offset

    def discard(self) -> None:
        """Do not record the loss since the last step."""
        self.discarded += 1

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers that the program logs, in the current step or in one of its own steps."""
        self._named.update(values)
        at = self.step if step is None else self.at(step)
        self.threadlet.notes.add(at, dict(values), self.step)

    def measure(self, name: str, value: Any, step: int | None = None) -> None:
        """Record a number that an adapter measured, unless the program logs one of this name."""
        threadlet = self.threadlet
        if threadlet.has_logged or self._source == "transformers" or name in self._named:
            return
        at = threadlet.boundary.step if step is None else step
        threadlet.notes.add(at, {name: value})

    def configure(self, values: Mapping[str, Any]) -> None:
        """Add values to the config of the run, without secrets; `loom.init` has priority."""
        knobs = self.threadlet.knobs
        for name, value in public(values).items():
            if knobs.get(name) is None:
                knobs.configure(name, value)
        self.threadlet.introduce()

    def total(self, steps: int | None) -> None:
        """Report how many steps the program will take, for its progress and the time left."""
        total = None if steps is None or steps <= 0 else steps + self._offset
        if total != self._total and self.threadlet.identity.rank == 0:
            self.threadlet.event("job", {"total_steps": total})
        self._total = total

    # Its own steps.

    def begin(self, source: Source, step: int) -> bool:
        """Begin a training at one of the program's own steps; False if its steps do not count.

        The steps of a second training in this process are counted on from those of the first.
        """
        if self.threadlet.is_followed or _TRUST[source] < _TRUST[self._source]:
            return False
        self._source, self._offset = source, max(0, self.step - step)
        self.threadlet.follow_trainer(step + self._offset)
        return True

    def reach(self, source: Source, step: int) -> None:
        """Pass the boundary before a step of the program: `step` of its steps are done."""
        if source == self._source and step + self._offset != self.step:
            self.threadlet.reach(step + self._offset)

    def end(self, source: Source) -> None:
        """End a training: the steps of optimizers count again."""
        if source == self._source and source != "count":
            self._source = "count"
            self.threadlet.follow_optimizers()

    def return_to(self, step: int) -> None:
        """Forget the steps since this one: they were no training."""
        if self._source == "count" and self.step > step:
            self.threadlet.boundary.step = step

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Do not count the steps of the block."""
        since = self.step
        try:
            yield
        finally:
            self.return_to(since)

    # How its trainer saves and stops.

    def train_by(self, trainer: TrainerActs) -> None:
        """Let a trainer carry out checkpoints and stops, until `trained` is called."""
        self.threadlet.acts.trainers.append(trainer)

    def trained(self, trainer: TrainerActs) -> None:
        """Remove a trainer whose training has ended."""
        trainers = self.threadlet.acts.trainers
        trainers[:] = [one for one in trainers if one is not trainer]


def last_step() -> float:
    """Return the step at which the run ends, if one is set."""
    until = text(UNTIL_VARIABLE)
    return int(until) if until.isdecimal() else float("inf")


def public(value: Any) -> Any:
    """Return namespaces and mappings as dictionaries, without values that are named as secrets."""
    if type(value).__name__ == "Namespace":
        value = vars(value)
    if isinstance(value, Mapping):
        shown = {str(name): part for name, part in value.items()}
        return {name: public(part) for name, part in shown.items() if not _SECRET.search(name)}
    return [public(part) for part in value] if isinstance(value, list | tuple) else value


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, or a tensor or an array of one."""
    return isinstance(value, int | float) or getattr(value, "shape", None) == ()


_observed: ObservedProgram | None = None


def observed() -> ObservedProgram:
    """Return the program of this process."""
    global _observed
    if _observed is None:
        _observed = ObservedProgram(current())
    return _observed


def observe_torch(threadlet: Threadlet, module: Any) -> None:
    """Watch the optimizers of `torch.optim.optimizer`, and observe the numbers of plain loops."""
    threadlet.watch(module)
    observed().observe_torch()
