"""The API of a training program: `loom.init()`, and a `Run` with steps, metrics and knobs."""

import importlib
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import index
from typing import Any, Literal, TypeVar

from torchloom.messages.plane import Value
from torchloom.worker import environment
from torchloom.worker.programs.frameworks import observe_frameworks
from torchloom.worker.programs.program import observe_torch, observed
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
_COMM = "torchloom.worker.dist.comm"

M = TypeVar("M")

_run: "Run | None" = None


def _unmanaged_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a rank that another launcher started; imported only then."""
    from torchloom.worker.threadlet import unmanaged

    return unmanaged.launch_variables(env)


def _unmanaged_names() -> dict[str, Value]:
    """Return the name and the owner of the job of such a rank."""
    from torchloom.settings import user_name
    from torchloom.worker.threadlet.unmanaged import script_name

    return {"name": script_name(), "owner": user_name()}


def init(
    project: str = "", config: Mapping[str, Any] | None = None, replica: str | int = ""
) -> "Run":
    """Return the run that this process belongs to; later calls return the same run.

    Call it once, near the top of the program. Under `loom run` and `loom launch` it is the run of
    the submitted job. In a notebook, or under torchrun, mpirun or srun, the process registers with
    this user's plane as a rank of a job that is named after the script.

    Args:
        project: A name under which runs are grouped.
        config: Values for `run.config`. The hyperparameters of a submitted job replace values of
            the same name. A value becomes a knob, which `loom set` can change, once a step has
            read it; an optimizer's knob of the same name takes precedence.
        replica: The replica group of this rank, if it is not the one that the launcher set.

    Example:
        >>> import torchloom as loom
        >>> run = loom.init(project="gpt", config={"temperature": 0.7})
        >>> run.config["temperature"]
        0.7
    """
    global _run
    if _run is None:
        threadlet = current(_unmanaged_variables)
        when_imported("torch.optim.optimizer", partial(observe_torch, threadlet))
        observe_frameworks()
        spec = submitted(environment.variables())
        _run = Run(threadlet, project, spec)
        threadlet.event("init", {"project": project})
        for name, knob in spec.knobs.items():
            limits = knob.get("value"), knob.get("min"), knob.get("max")
            threadlet.knobs.declare(name, *limits, source="spec")
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
    """One run: its steps, metrics, knobs and checkpoints. `loom.init()` returns it.

    Attributes:
        id: The id of the job.
        project: The project that `init` was given.
        config: The values of the config and the knobs, as a read-only mapping that is always
            current; values are attributes, too (`run.config.lr`).
        applied: The number of completed steps.

    Example:
        >>> model = run.wrap(model)
        >>> loader = run.loader(dataset, batch_size=64)
        >>> run.track(optimizer=optimizer)
        >>> for step in run.steps(loader, epochs=2):
        ...     with step:
        ...         loss = model(step.batch).loss
        ...         loss.backward(); optimizer.step(); optimizer.zero_grad()
        ...         step.log(loss=loss)
    """

    def __init__(
        self, threadlet: Threadlet, project: str, spec: "SubmittedJob | None" = None
    ) -> None:
        self.submitted = spec or SubmittedJob()
        self.project = project
        self.id = threadlet.identity.job
        self.config = Config(threadlet.knobs, self._is_inside, threadlet.acts.read)
        self.applied = 0  # steps that are done
        self.add = threadlet.notes.add
        self._make: Callable[..., Step] = Step  # ProvokedStep for the step after a signal
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
        self._has_steps = False  # the program assigns `step`
        self._tags: tuple[str, ...] = ()
        self._notes = ""
        self._resumable: Any = None  # a ResumableRun, once there is state to save
        self._profile: Any = None  # a CollectiveProfile, in loops whose collectives are timed
        self._live: Any = None  # its RankRecovery, in loops that are recovered live
        self._error: BaseException | None = None  # of a step or section, not raised yet

    def log(
        self, values: Mapping[str, Any] | None = None, /, step: int | None = None, **more: Any
    ) -> None:
        """Log metrics. Never blocks and never raises.

        Inside `steps` the values belong to the current step. Elsewhere they belong to `step`, or to
        a counter that grows when a name is logged again. A tensor with one element is cloned on
        its device and read when the device has computed it; values that are not numbers are
        dropped, with one line on standard error.

        Example:
            >>> run.log({"eval/loss": 0.31}, step=1000)
        """
        self._threadlet.has_logged = True
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
        """Return the step of values that are logged outside of `steps` without a step."""
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
        """Return the step that the program passed, or None if it is not one."""
        try:
            at = step if type(step) is int else index(step)
        except Exception:  # also a failed device: logging never raises
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
        """Register a knob: a value that `loom set` and the dashboard may change within a range.

        Returns:
            The current value, which differs from `value` if a change is already in force. Read
            `run.config[name]` inside a step for later changes.

        Raises:
            BadKnobValue: `value` is outside of the range.

        Example:
            >>> clip = run.knob("clip", 1.0, min=0.0, max=10.0)
        """
        knob = self._threadlet.knobs.declare(name, value, min, max)
        self._threadlet.acts.make_up()
        self._threadlet.introduce()
        offered: Value = knob.value  # what was due before it was there may have changed it
        return offered

    def on(self, name: str, fn: Callable[[Any], object], type: type | None = None) -> None:  # noqa: A002
        """Call `fn` with the new value when a knob changes, between two steps, in this thread.

        `run.on("checkpoint", fn)` calls `fn` with the step number when a checkpoint is requested.
        `type` is the type of values of a knob that is not registered otherwise.
        """
        self._threadlet.on(name, fn, type)

    def _is_inside(self) -> bool:
        """Tell whether a step is running; an attached program is always in one after its first."""
        return self._inside or self._boundary.kind == "attached"

    def event(self, kind: str, **facts: Value) -> None:
        """Record an event of this kind in the current step, with these facts."""
        self._threadlet.event(kind, facts)

    def finish(self) -> None:
        """Flush what was logged and unregister this process; later calls of `log` are dropped.

        Ending the process does the same. `with loom.init() as run:` finishes at the end of the
        block.
        """
        if not self._is_finished:
            self._is_finished = True
            if not self._threadlet.finish():
                sys.stderr.write("loom: not everything that was logged has reached the agent\n")
            self.add = self._refuse

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def _refuse(self, step: int, values: Mapping[str, Any], at: int | None = None) -> None:
        why = "run.finish() was called; another process is another run"
        self._threadlet.notes.drop("what is logged now", why)

    @property
    def step(self) -> int:
        """The current step. Assign to it in a loop that is not `run.steps`: `run.step = n`.

        Metrics, commands and the progress of the job then use the program's own steps. Assign at
        the beginning of each step; after a restart begin at the step that the program resumes at.

        Example:
            >>> for iteration in range(start, 1000):
            ...     run.step = iteration
        """
        return self._boundary.step

    @step.setter
    def step(self, step: int) -> None:
        if self._has_steps:
            observed().reach("program", index(step))
        else:
            self._has_steps = observed().begin("program", index(step))

    # What it is known by.

    @property
    def url(self) -> str | None:
        """The address of this job in the dashboard; None without a plane on this host."""
        if not self._threadlet.identity.agent:
            return None
        from torchloom.client import plane

        return plane.page_of(self.id) or None

    @property
    def tags(self) -> tuple[str, ...]:
        """Labels of the run, for filters; assign a new list to replace them."""
        return self._tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        words = (tags,) if isinstance(tags, str) else tags
        self._tags = tuple(dict.fromkeys(map(str, words)))
        self._threadlet.event("labels", {"tags": list(self._tags)})

    @property
    def notes(self) -> str:
        """Free text about the run; assign to change it."""
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
        """Declare whether a smaller (`min`) or a larger (`max`) value of a metric is better."""
        if goal not in ("min", "max"):
            raise ValueError(f"goal must be 'min' or 'max', not {goal!r}")
        self._threadlet.event("metric", {"name": str(name), "goal": goal})

    @property
    def generation(self) -> int:
        """The number of the current membership; it grows when ranks are replaced, lost or added."""
        return self._threadlet.identity.generation

    def section(self, name: str = "") -> Section:
        """Return a context manager for collective work between steps, such as an evaluation.

        If a peer is lost inside the block, live recovery skips the rest of the block and the run
        continues with its next step. `section.is_done` is True if the block was completed.

        Example:
            >>> with run.section("evaluation"):
            ...     accuracy = evaluate(model)
        """
        return Section(self, name)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all ranks. For the set-up, before `steps`.

        A rank that replaces another later gets the value that the replaced rank got.

        Args:
            value: Plain values and tensors, in lists, tuples and dictionaries.

        Raises:
            BadBroadcast: The value contains objects of other types.
        """
        return self._carried().broadcast(value)

    # State that checkpoints and live recovery carry.

    @property
    def resumed(self) -> bool:
        """Whether this process resumes from a checkpoint."""
        if self._resumable is not None and self._resumable.has_begun and self._resumable.things:
            return self.resumed_from is not None
        return environment.text(environment.RESUME_VARIABLE) not in ("", "1")

    @property
    def resumed_from(self) -> int | None:
        """The step of the checkpoint that was resumed from; None before `steps`, or without one."""
        return self._resumable.resumed_from if self._resumable is not None else None

    def wrap(
        self,
        model: M,
        name: str = "",
        strategy: str | None = None,
        plan: Mapping[str, Any] | None = None,
        mesh: Mapping[str, int] | None = None,
        sequence_parallel: bool = False,
        schedule: str | None = None,
        microbatches: int | None = None,
        compression: Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> M:
        """Return the model for training on all ranks, by the strategy of the job or the one given.

        Under `data_parallel` the result has the attributes, the state dict and the parameter names
        of the model, and its forward pass goes through DistributedDataParallel if there are
        several ranks. Checkpoints and live recovery carry its parameters and buffers. The other
        strategies divide the model in place: each rank holds a part and saves it, and a run with
        another number of ranks or another mesh resumes from it. Move the model to its device and
        join the ranks first (`init_process_group` or `setup_torch`); create the optimizer
        afterwards.

        Args:
            model: The module to train.
            name: Its name in checkpoints; `model`, `model2` and so on without one.
            strategy: `data_parallel`, `fsdp`, `hsdp`, `tensor_parallel`, `pipeline_parallel` or
                `hybrid`; without one, `distributed` of the job, else `data_parallel`.
            plan: For tensor parallelism: the style of modules by name, such as
                `{"layers.*.up": "colwise", "layers.*.down": "rowwise"}`. Ready-made models and
                models of `transformers` have a plan of their own.
            mesh: The sizes `pp`, `dp_replicate`, `dp_shard` and `tp`; without one, all ranks.
            sequence_parallel: Divide the sequence between the layers of tensor parallelism.
            schedule: Of a pipeline: `gpipe`, `1f1b` or `interleaved`. A pipeline is trained by
                `loss, outputs = model.step(inputs, targets, loss_function)`.
            microbatches: Into how many parts a pipeline cuts a batch; one a stage without it.
            compression: What ranks send instead of whole gradients: an algorithm (`fp16`, `bf16`,
                `powersgd`, `topk`, `onebit`, `int8`) or the mapping `compression` of a job;
                without one, that of the job. `{}` turns it off.
            **options: Arguments of `DistributedDataParallel`, or of `fully_shard`.

        Raises:
            NoGroup: There are several ranks, and no process group yet.
            BadTrackedState: Another model has this name.
            BadTensorPlan: The model has no plan for tensor parallelism, or cannot be divided by it.
            BadPipeline: The model cannot be cut into stages.
            SpecError: The mesh does not fit the ranks, or the compression does not fit.

        Example:
            >>> model = run.wrap(model.to(device))
            >>> optimizer = torch.optim.AdamW(model.parameters())
        """
        asked: dict[str, Any] = {"strategy": strategy, "mesh": mesh}
        asked |= {"schedule": schedule, "microbatches": microbatches}
        asked = {key: value for key, value in asked.items() if value is not None}
        if sequence_parallel:
            asked["sequence_parallel"] = True
        distributed = asked if strategy is not None else {**self.submitted.distributed, **asked}
        given = self.submitted.compression if compression is None else compression
        wrapped: M = self._carried().wrap(model, name, distributed, plan, given, options)
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
        """Return a loader that divides a dataset among all ranks, each sample once per epoch.

        The order depends only on seed and epoch. A resumed run therefore continues with the next
        sample, and a run with another number of ranks divides the remaining samples.

        Args:
            dataset: An object with `__len__` and `__getitem__`.
            batch_size: Samples in a batch of one rank.
            shuffle: Draw a new order for each epoch.
            num_workers: Processes that read samples.
            drop_last: Leave out the last batch of an epoch if it is not full.
            **more: Further arguments of `torch.utils.data.DataLoader`.

        Raises:
            BadData: The dataset has no length, or an argument contradicts the run's own order.

        Example:
            >>> loader = run.loader(dataset, batch_size=64, num_workers=4)
        """
        options = {"batch_size": batch_size, "shuffle": shuffle, "num_workers": num_workers}
        return self._carried().loader(dataset, drop_last=drop_last, **options, **more)

    def track(self, **things: Any) -> None:
        """Add objects with `state_dict` and `load_state_dict` to checkpoints and live recovery.

        Track every optimizer, scheduler and gradient scaler, under a name of your choice, and
        random generators of your own (of torch, numpy or `random`) that draw before the forward
        pass of a step.

        Example:
            >>> run.track(optimizer=optimizer, scheduler=scheduler)

        Raises:
            BadTrackedState: An object has no state dict, or the name is taken by another.
        """
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
        """Set when checkpoints are saved and which are kept. Call it before `steps`.

        It replaces the settings of the submitted job.

        Args:
            every_n_steps: Steps between two checkpoints.
            every_n_seconds: Seconds between two checkpoints.
            keep_last: Number of newest checkpoints to keep.
            keep_every: Also keep those whose step is a multiple of this.
            best: A metric; also keep the checkpoint with its best value.
            mode: Whether the `min` or the `max` of that metric is best.
            enabled: Whether checkpoints are saved at all.
        """
        when = {"every_n_steps": every_n_steps, "every_n_seconds": every_n_seconds}
        kept = {"keep_last": keep_last, "keep_every": keep_every, "best": best, "mode": mode}
        self._carried().configure_checkpoints({**when, **kept, "enabled": enabled})

    def checkpoint(self) -> None:
        """Save a checkpoint after the current step. All ranks must call it in the same step."""
        resumable = self._carried()
        resumable.saves.wanted = True
        if resumable.has_begun and not self._inside:
            resumable.save(self._next, "program")

    def _carried(self) -> Any:
        """Return the state to carry; imported on use, because it needs torch."""
        if self._resumable is None:
            resumable = importlib.import_module(_RESUMABLE)
            self._resumable = resumable.ResumableRun(self._threadlet, self.submitted)
        return self._resumable

    # The loop.

    def steps(self, source: int | Iterable[Any], epochs: int = 1) -> Iterator[Step]:
        """Yield one `Step` for each batch of a loader, or `source` steps, in each epoch.

        Knob changes, pauses and checkpoints take effect between two steps. When the run is stopped,
        the loop ends as if the data had ended, and the program continues after it. A process that
        resumes from a checkpoint gets the remaining steps only. After a live recovery, the
        interrupted step is yielded again with its batch.

        Args:
            source: A loader (`run.loader`, a DataLoader or any iterable), or a number of steps for
                programs that read their own data. Such a program has to seek in its data itself.
            epochs: How often the source is iterated.

        Example:
            >>> for step in run.steps(loader, epochs=2):
            ...     with step:
            ...         loss = train_on(step.batch)
            ...         step.log(loss=loss)
        """
        self._threadlet.follow_program()
        steps.listen(self._provoke)
        start, size = self._next, size_of(source, epochs)
        dealt = self._begin(source, epochs)
        self._report_total(start, size)
        if dealt is None:
            return
        self._threadlet.begin()
        self._profile = self._profile_of_collectives()
        dealing = Dealing(dealt)
        del dealt  # a loader's workers end with the last reference to it
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
        """Report the total number of steps, as far as the loops so far determine it."""
        before = start if self._next == start else self._planned  # resumed: by earlier loops' sizes
        self._planned = None if before is None or size is None else before + size
        if self._threadlet.identity.rank == 0:
            total = None if self._planned is None else min(self._planned, self._until)
            self._threadlet.event("job", {"total_steps": total})

    def _take(self, dealing: Dealing) -> Step | None:
        """Return the next step, or None at the end."""
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
        """Make the next step raise an exception, and no other."""

        def once(run: Run, number: int, epoch: int, batch: Any) -> Step:
            self._make = Step
            return steps.ProvokedStep(run, number, epoch, batch)

        self._is_provoked, self._make = True, once

    def _deal(self, dealing: Dealing) -> Batch:
        return dealing.next() if self._live is None else dealing.of(self._next)

    def _recover(self, dealing: Dealing) -> None:
        """Continue with the new members at their step; an exception of this program is raised."""
        error, self._error = self._error, None
        dealt, start = self._resumable.recover(self._next, error)
        dealing.go_to(start, dealt)
        self._next = self.applied = start
        if self._is_provoked:
            self._provoke()  # the exception was attributed to a lost peer

    def hold_back(self, error: BaseException | None) -> bool:
        """Tell whether an exception is kept for later, because a lost peer may have caused it."""
        is_held = self._live is not None and self._live.is_live and isinstance(error, Exception)
        if is_held and self._error is None:
            self._error = error
        return is_held

    def _begin(self, source: int | Iterable[Any], epochs: int) -> Dealt | None:
        """Return the batches of a loop; None if it was completed before the restart."""
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
        """Count the last step of a program that breaks out of its loop."""
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
        """Print an exception that was kept for later, since the loop ends without raising it."""
        error, self._error = self._error, None
        sys.stderr.write(f"loom: an exception in step {self._next} was raised before:\n")
        traceback.print_exception(error)

    def _continues(self) -> bool:
        """Pass the boundary to the next step; tell whether the loop continues with it."""
        if self._profile is not None:
            self._profile.reach(self._next)
        if self._boundary.reach(self._next, self.applied):
            self._threadlet.attend()
        if self._threadlet.acts.stopping or self._next >= self._until:
            return False
        if self._resumable is not None:
            self._resumable.boundary(self._next)
        return True

    def _is_extended(self) -> bool:
        """Tell whether a loop at the end of its data iterates it once more.

        A completed run is extended in its last loop, never in an earlier one.
        """
        return self._own_end <= self._next < self._until

    def _profile_of_collectives(self) -> Any:
        """Return what times collectives, if the job or its user asks for it and torch is there."""
        asked = self.submitted.distributed.get("comm_timing")
        if not (asked or environment.text(environment.COMM_TIMING_VARIABLE)):
            return None
        comm = importlib.import_module(_COMM)
        every = comm.every_of(self.submitted.distributed)
        return comm.CollectiveProfile(every, self._threadlet.notes.add) if every else None

    def _finish(self) -> None:
        if self._profile is not None:
            self._profile.stop()
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
