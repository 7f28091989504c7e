"""What a training program writes: `loom.init()`, and a run with steps, numbers and knobs."""

import importlib
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from typing import Any, Literal, TypeVar

from torchloom.messages.plane import Value
from torchloom.worker import environment
from torchloom.worker.run import steps
from torchloom.worker.run.steps import NONE, Batch, Dealing, Dealt, Section, Step, size_of
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.knobs import Config
from torchloom.worker.threadlet.rank_identity import SubmittedJob, submitted
from torchloom.worker.threadlet.threadlet import Threadlet, current

_NEVER = 1 << 62
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1  # steps that can be stored
_NONE: Any = object()
_RESUMABLE = "torchloom.worker.run.resumable"

M = TypeVar("M")

_run: "Run | None" = None


def _unmanaged_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return where a rank belongs that nobody of ours started; looked for only then."""
    from torchloom.worker.threadlet import unmanaged

    return unmanaged.launch_variables(env)


def _unmanaged_names() -> dict[str, Value]:
    """Return what such a rank's job is called, and whose it is."""
    from torchloom.settings import user_name
    from torchloom.worker.threadlet.unmanaged import script_name

    return {"name": script_name(), "owner": user_name()}


def init(
    project: str = "", config: Mapping[str, Any] | None = None, replica: str | int = ""
) -> "Run":
    """Return the run this process belongs to.

    A value of the config is a knob once a step has read it; an optimizer's knob of the same name
    goes before it. Where a submitted job says otherwise, its word holds: its hyperparameters are
    in the config, its knobs are offered. A rank that no launch of ours started is known to this
    user's plane all the same, as one of a job that has the script's name: a notebook, a script
    under torchrun, mpirun or srun.
    """
    global _run
    if _run is None:
        threadlet = current(_unmanaged_variables)
        when_imported("torch.optim.optimizer", threadlet.watch)
        spec = submitted(environment.variables())
        _run = Run(threadlet, project, spec)
        threadlet.event("init", {"project": project})
        for name, knob in spec.knobs.items():
            said = knob.get("value"), knob.get("min"), knob.get("max")
            threadlet.knobs.declare(name, *said, source="spec")
        for name, value in spec.hyperparameters.items():
            threadlet.knobs.configure(name, value)
        if threadlet.identity.agent and not environment.is_set(environment.JOB_VARIABLE):
            threadlet.event("job", _unmanaged_names())
    if replica != "":
        current().join(str(replica))
        if named := project or _run.project:  # without one no other run can belong to it
            current().event("job", {"replica_of": named})
    for name, value in (config or {}).items():
        current().knobs.configure(name, _run.submitted.hyperparameters.get(name, value))
    if config or _run.submitted.knobs:
        current().introduce()
    return _run


class Run:
    """A run as the training program sees it."""

    def __init__(
        self, threadlet: Threadlet, project: str, spec: "SubmittedJob | None" = None
    ) -> None:
        self.submitted = spec or SubmittedJob()
        self.project = project
        self.id = threadlet.identity.job
        self.config = Config(threadlet.knobs, self._is_inside, threadlet.acts.read)
        self.applied = 0  # steps that are done
        self.add = threadlet.notes.add
        self._make: Callable[..., Step] = Step  # another one where somebody provokes it
        self._is_provoked = False
        self._threadlet = threadlet
        self._boundary = threadlet.boundary
        self._next = 0
        self._until = _step(environment.UNTIL_VARIABLE)
        self._own_end = _step(environment.OWN_END_VARIABLE)
        self._epochs = 0  # of all loops so far
        self._planned: int | None = 0  # steps of all loops so far; none: not all have a length
        self._inside = False
        self._logged = -1  # the step of what was logged last outside of loops
        self._names: Mapping[str, Any] = {}  # and what was logged in it
        self._is_finished = False
        self._tags: tuple[str, ...] = ()
        self._notes = ""
        self._resumable: Any = None  # a ResumableRun, once there is something to carry
        self._live: Any = None  # its Recovery, in loops whose members may be replaced
        self._error: BaseException | None = None  # of a step or section, held back

    def log(
        self, values: Mapping[str, Any] | None = None, /, step: int | None = None, **more: Any
    ) -> None:
        """Note numbers; never waits, never raises, reads no tensor.

        They are of the step that is given, of the current one within `steps`, and elsewhere of
        one that is counted here: it grows when a name comes again. A tensor of one number is
        kept as it is now and read when its device is done with it.
        """
        if values is not None:
            try:
                more = {**values, **more}
            except TypeError:
                self._threadlet.notes.drop(f"a {type(values).__name__}", "log takes a mapping")
                return
        if step is None:
            self.add(self._boundary.step if self._inside else self._counted(more), more)
        elif (at := self._given_step(step, more)) is not None:
            self.add(at, more, self._boundary.step)

    def _counted(self, row: Mapping[str, Any]) -> int:
        """Return the step of numbers that are logged outside of `steps`, without one."""
        here, names = self._boundary.step, self._names
        if here > self._logged:
            self._logged, self._names = here, row
            return here
        for name in row:
            if name in names:
                self._names = row
                self._logged += 1
                return self._logged
        self._names = {**names, **row}
        return self._logged

    def _given_step(self, step: Any, row: Mapping[str, Any]) -> int | None:
        """Return the step that the program gives; nothing for what is none."""
        try:
            at = step if type(step) is int else index(step)
        except Exception:  # a device that failed, too: logging never raises
            at = None
        if at is None or not _LOWEST <= at <= _HIGHEST:
            what = ", ".join(map(repr, list(row)[:3]))
            self._threadlet.notes.drop(what, f"{str(step)[:40]!r} is not a step")
            return None
        if at > self._logged and self._boundary.kind == "none":
            self._logged, self._names = at, row
        return at

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
        offered: Value = knob.value  # what was due before it was there may have changed it
        return offered

    def on(self, name: str, fn: Callable[[Any], object], type: type | None = None) -> None:  # noqa: A002
        """Call a function with the new value of a knob, in this thread, at the step's boundary.

        `checkpoint` is called with the step's number when somebody wants one now.
        """
        self._threadlet.on(name, fn, type)

    def _is_inside(self) -> bool:
        """Tell whether a step is under way; an attached program is in one from its first on."""
        return self._inside or self._boundary.kind == "attached"

    def event(self, kind: str, **facts: Value) -> None:
        """Say that something happened in this step."""
        self._threadlet.event(kind, facts)

    def finish(self) -> None:
        """Send what was logged, and end what this process says of its run; logging is over then.

        `with loom.init() as run:` does so at the end of the block.
        """
        if not self._is_finished:
            self._is_finished = True
            if not self._threadlet.finish():
                sys.stderr.write("loom: not all that was logged has reached the agent\n")
            self.add = self._refuse

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def _refuse(self, step: int, values: Mapping[str, Any], at: int | None = None) -> None:
        why = "run.finish() was called; another process is another run"
        self._threadlet.notes.drop("what is logged now", why)

    # What it is known by.

    @property
    def url(self) -> str | None:
        """Return where the dashboard shows this job; nothing where the plane serves none here."""
        if not self._threadlet.identity.agent:
            return None
        from torchloom.client import plane

        return plane.page_of(self.id) or None

    @property
    def tags(self) -> tuple[str, ...]:
        """Words that the run is found by; to be set as a whole."""
        return self._tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        words = (tags,) if isinstance(tags, str) else tags
        self._tags = tuple(dict.fromkeys(map(str, words)))
        self._threadlet.event("labels", {"tags": list(self._tags)})

    @property
    def notes(self) -> str:
        """What a person is to know of the run; to be set."""
        return self._notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._notes = str(notes)
        self._threadlet.event("labels", {"notes": self._notes})

    def __repr__(self) -> str:
        identity, url = self._threadlet.identity, self.url
        about = [f"rank {identity.rank} of {identity.world_size}", f"step {self._boundary.step}"]
        about = ([f"project {self.project!r}"] if self.project else []) + about
        return f"<loom run {self.id}: {', '.join(about + ([url] if url else []))}>"

    def metric(self, name: str, goal: Literal["min", "max"]) -> None:
        """Say which way a metric is to go, where its name does not; its run keeps that."""
        if goal not in ("min", "max"):
            raise ValueError(f"goal must be 'min' or 'max', not {goal!r}")
        self._threadlet.event("metric", {"name": str(name), "goal": goal})

    @property
    def generation(self) -> int:
        """Return which membership of the job this rank is in; it grows when others are replaced."""
        return self._threadlet.identity.generation

    def section(self, name: str = "") -> Section:
        """Return what holds exceptions back in a part that is no step, as `with step:` does.

        Wrap what ranks do together between steps, an evaluation for instance. If a peer is lost
        there the rest of the block is passed over, and the run goes on at its next step.
        """
        return Section(self, name)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all ranks: plain values and tensors. For the set-up.

        A rank that comes later, in the place of another, gets what that one got.
        """
        return self._carried().broadcast(value)

    # What is carried from life to life.

    @property
    def resumed(self) -> bool:
        """Tell whether this life of the run goes on from a checkpoint."""
        if self._resumable is not None and self._resumable.has_begun and self._resumable.things:
            return self.resumed_from is not None
        return environment.text(environment.RESUME_VARIABLE) not in ("", "1")

    @property
    def resumed_from(self) -> int | None:
        """Return the step that this life went on from; known when `steps` has begun."""
        return self._resumable.resumed_from if self._resumable is not None else None

    def wrap(self, model: M, name: str = "", **options: Any) -> M:
        """Return the model as all ranks train it; checkpoints carry its weights and buffers.

        Call it when the ranks have met, and make the optimizer from what it returns. Options are
        those of DistributedDataParallel.
        """
        wrapped: M = self._carried().wrap(model, name, options)
        return wrapped

    def loader(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = True,
        num_workers: int = 0,
        drop_last: bool = False,
        **more: Any,
    ) -> Any:
        """Return a loader whose samples the run deals: each once an epoch, over all ranks.

        `batch_size` is a rank's. Further options are those of torch's DataLoader.
        """
        told = {"batch_size": batch_size, "shuffle": shuffle, "num_workers": num_workers}
        return self._carried().loader(dataset, drop_last=drop_last, **told, **more)

    def track(self, **things: Any) -> None:
        """Have checkpoints carry an optimizer, a scheduler, a scaler, whatever has a state_dict."""
        self._carried().things.track(things)

    def checkpointing(
        self,
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
        keep_last: int = 3,
        keep_every: int | None = None,
        best: str | None = None,
        mode: str = "min",
        enabled: bool = True,
    ) -> None:
        """Say when to save and what to keep, instead of the job; before `steps`."""
        told = {"every_n_steps": every_n_steps, "every_n_seconds": every_n_seconds}
        kept = {"keep_last": keep_last, "keep_every": keep_every, "best": best, "mode": mode}
        self._carried().configure_checkpoints({**told, **kept, "enabled": enabled})

    def checkpoint(self) -> None:
        """Save when the step that is under way is done; all ranks ask for it in the same step."""
        resumable = self._carried()
        resumable.saves.wanted = True
        if resumable.has_begun and not self._inside:
            resumable.save(self._next, "program")

    def _carried(self) -> Any:
        """Return what is carried; found by name, since it needs torch and this module must not."""
        if self._resumable is None:
            resumable = importlib.import_module(_RESUMABLE)
            self._resumable = resumable.ResumableRun(self._threadlet, self.submitted)
        return self._resumable

    # The loop.

    def steps(self, source: int | Iterable[Any], epochs: int = 1) -> Iterator[Step]:
        """Yield steps: so many, or one for each batch of a loader, over some epochs.

        Commands act between two steps. When the run is told to stop, the loop ends as if the
        data had, and the program goes on behind it. A life that goes on from a checkpoint yields
        the steps behind it.
        """
        self._threadlet.follow_program()
        steps.listen(self._provoke)
        start, size = self._next, size_of(source, epochs)
        dealt = self._begin(source, epochs)
        self._report_total(start, size)
        if dealt is None:
            return
        self._threadlet.begin()
        dealing = Dealing(dealt)
        del dealt  # a loader's workers end with the last who knows them
        while (step := self._take(dealing)) is not None:
            self._inside = True
            try:
                yield step
            except GeneratorExit:
                self._leave()
                raise
            self._inside = False
            if self._error is None or self.applied > self._next:  # what failed was behind it
                self._next += 1
                self.applied = self._next

    def _report_total(self, start: int, size: int | None) -> None:
        """Report with how many steps the program is done, as far as its loops tell by now."""
        before = start if self._next == start else self._planned  # resumed: by earlier loops' sizes
        self._planned = None if before is None or size is None else before + size
        if self._threadlet.identity.rank == 0:
            total = None if self._planned is None else min(self._planned, self._until)
            self._threadlet.event("job", {"total_steps": total})

    def _take(self, dealing: Dealing) -> Step | None:
        """Return the next step; nothing when there is none left."""
        live = self._live
        while True:
            if live is not None and (self._error is not None or live.is_over):
                self._recover(dealing)
            epoch, batch = self._deal(dealing) if self._continues() else NONE
            if live is not None and live.is_over:
                continue
            if epoch is not None:
                return self._make(self, self._next, epoch, batch)
            self._finish()
            if live is None or live.has_finished(self._next):
                self._live = None
                return None

    def _provoke(self) -> None:
        """Have the step that comes next raise, and no other."""

        def once(run: Run, number: int, epoch: int, batch: Any) -> Step:
            self._make = Step
            return steps.ProvokedStep(run, number, epoch, batch)

        self._is_provoked, self._make = True, once

    def _deal(self, dealing: Dealing) -> Batch:
        return dealing.next() if self._live is None else dealing.of(self._next)

    def _recover(self, dealing: Dealing) -> None:
        """Go on with other members, where they are; an exception of our own is raised."""
        error, self._error = self._error, None
        dealt, start = self._resumable.recover(self._next, error)
        dealing.go_to(start, dealt)
        self._next = self.applied = start
        if self._is_provoked:
            self._provoke()  # whatever was raised was taken for a lost peer's doing

    def hold_back(self, error: BaseException | None) -> bool:
        """Tell whether an exception is not raised yet, since it may be a peer's."""
        is_held = self._live is not None and self._live.is_live and isinstance(error, Exception)
        if is_held and self._error is None:
            self._error = error
        return is_held

    def _begin(self, source: int | Iterable[Any], epochs: int) -> Dealt | None:
        """Return the batches of a loop; nothing if an earlier life has been through it."""
        first, self._epochs = self._epochs, self._epochs + epochs
        if self._resumable is None:
            return _deal(source, first, epochs, self._is_extended)
        begun = self._resumable.begin(source, first, epochs, self._next, self._is_extended)
        if begun is None:
            return None
        dealt: Dealt
        dealt, self._next = begun
        self.applied = self._next
        self.add = self._resumable.noting(self._threadlet.notes.add)
        self._live = self._resumable.live
        return dealt

    def _leave(self) -> None:
        """Count the step behind which a program leaves its loop by itself."""
        self._inside = False
        if self._error is not None:
            self._show()
        elif self.applied > self._next:
            self._next = self.applied
            self._boundary.reach(self._next, self.applied)
            if not sys.is_finalizing():
                self._finish()
        if self._live is not None:
            self._live.leave(self._next)
            self._live = None

    def _show(self) -> None:
        """Say what was held back: the program ends otherwise before it was raised."""
        error, self._error = self._error, None
        sys.stderr.write(f"loom: an exception in step {self._next} had come before:\n")
        traceback.print_exception(error)

    def _continues(self) -> bool:
        """Pass to the beginning of the next step; tell whether it is to be taken."""
        if self._boundary.reach(self._next, self.applied):
            self._threadlet.attend()
        if self._threadlet.acts.stopping or self._next >= self._until:
            return False
        if self._resumable is not None:
            self._resumable.boundary(self._next)
        return True

    def _is_extended(self) -> bool:
        """Tell whether a loop whose data is at its end deals one more epoch of it.

        A run that had completed is extended in its last loop, never in one before that.
        """
        return self._own_end <= self._next < self._until

    def _finish(self) -> None:
        if self._resumable is not None:
            acts = self._threadlet.acts
            trigger = "stop" if acts.stopping else "end"
            self._resumable.finish(self._next, trigger, acts.releasing)


def _deal(
    source: int | Iterable[Any], first: int, epochs: int, is_extended: Callable[[], bool]
) -> Dealt:
    for epoch in itertools.count(first):
        if epoch >= first + epochs and not is_extended():
            return
        sampler: Any = getattr(source, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batch = _NONE
        for batch in range(source) if isinstance(source, int) else source:
            yield epoch, batch
        if batch is _NONE and epoch >= first + epochs:
            return  # it can be read once only


def _step(name: str) -> int:
    text = environment.text(name)
    return int(text) if text.isdecimal() else _NEVER
