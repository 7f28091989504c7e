"""One training from its first step to its last, over restarts and replaced ranks."""

import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchloom.errors import UserError
from torchloom.specs.jobspec import Checkpointing, Distributed, Mode, Strategy
from torchloom.specs.jobspec_shape import DISTRIBUTED
from torchloom.specs.mesh import is_sharded
from torchloom.worker import environment
from torchloom.worker.recovery import standin
from torchloom.worker.run import agreement, checkpoints, digests, step_log
from torchloom.worker.run.agreement import BroadcastValues
from torchloom.worker.run.checkpoints import CheckpointSaves, FoundCheckpoint, versions
from torchloom.worker.run.loader import BatchSource, Dealt, Loader, deal, open_source
from torchloom.worker.run.rng import mix, seed_generators
from torchloom.worker.run.tracked_state import (
    OtherProgram,
    State,
    TrackedState,
    refuse_sharded,
)
from torchloom.worker.run.wrap import NoGroup, Wrapped
from torchloom.worker.threadlet.rank_identity import SubmittedJob
from torchloom.worker.threadlet.threadlet import Threadlet

if TYPE_CHECKING:
    from torchloom.worker.dist.strategies import ParallelLayout, Plan
    from torchloom.worker.recovery.recovery import RankRecovery

_FIXED = "NCCL_ALGO"  # NCCL sums in a fixed order only with a fixed algorithm


def differences(loaded: Any, things: TrackedState, world_size: int) -> list[str]:
    """Return why a resumed run is not bit-exact: what changed, or cannot be checked."""
    found = []
    if not loaded.exact_world:
        found.append(f"world size {loaded.manifest.world_size} -> {world_size}")
    if not things.models:
        found.append("no model is wrapped by run.wrap")
    found += [
        f"{name} {was} -> {versions()[name]}"
        for name, was in loaded.manifest.versions.items()
        if name == "torch" and was != versions()[name]
    ]
    if agreement.backend() not in ("", "gloo") and not environment.is_set(_FIXED):
        found.append(f"{agreement.backend()} may sum in another order: set {_FIXED}")
    if things.devices() - {"cpu"} and not torch.are_deterministic_algorithms_enabled():
        found.append("torch.use_deterministic_algorithms is off")
    return found


class ShardsNotSaved(UserError):
    """A checkpoint is wanted of a model of which each rank holds a part."""

    code = "shards_not_saved"

    def __init__(self, strategy: str) -> None:
        super().__init__(
            f"checkpoints of {strategy} cannot be saved yet: turn checkpointing off, take"
            ' data_parallel, or save by the program\'s own code in run.on("checkpoint", save)'
        )


class PlanWithoutStrategy(UserError):
    """A plan of tensor parallelism is given to a strategy that replicates the model."""

    code = "plan_without_strategy"

    def __init__(self) -> None:
        super().__init__(
            "a plan is for the strategies tensor_parallel and hybrid: give one of them, or no plan"
        )


class ServersNotStarted(UserError):
    """A program asks for parameter servers, which only a job can start."""

    code = "servers_not_started"

    def __init__(self) -> None:
        super().__init__(
            "parameter servers are started with a job: submit a model with distributed.strategy"
            " parameter_server, or take another strategy"
        )


class OtherLayout(UserError):
    """Two models of a run are to be divided in different ways."""

    code = "other_layout"

    def __init__(self, wanted: str, there: str) -> None:
        super().__init__(
            f"this run's ranks are arranged for {there}, and another model asks for {wanted} or"
            " another mesh: give all models of a run the same"
        )


class SampleShare:
    """What the loader deals by: the seed of a run, and this rank's share of the samples."""

    def __init__(self, run: "ResumableRun") -> None:
        self._run = run

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._run.seed

    @property
    def rank(self) -> int:
        """The number of this rank's share."""
        return self._run.share[0]

    @property
    def world_size(self) -> int:
        """The number of shares."""
        return self._run.share[1]


class ResumableRun:
    """The state of a run that survives its processes, and its position in the loop."""

    def __init__(self, threadlet: Threadlet, spec: SubmittedJob) -> None:
        self.things = TrackedState()
        self.saves = CheckpointSaves(threadlet, checkpointing_of(spec.checkpointing))
        self.resumed_from: int | None = None
        self._threadlet = threadlet
        self._spec = spec
        self._place = "" if standin.is_on() else checkpoints.named(environment.variables())
        self._seed: int | None = None
        self._order = 0  # 0 if the program seeded all ranks alike, else rank + 1
        self._found: FoundCheckpoint | None = None
        self._since = 0.0  # when the search for it began
        self._has_searched = False
        self._loops = 0  # calls of run.steps
        self._source: BatchSource | None = None
        self._opening: Callable[[], BatchSource] | None = None  # once the seed is known
        self._is_extended: Callable[[], bool] = lambda: False  # whether data is iterated again
        self._at = -1  # the last step that began
        self.live: RankRecovery | None = None
        self.layout: ParallelLayout | None = None  # of a strategy that divides the model
        self.unfit = ""
        self._broadcasts: BroadcastValues | None = None
        self._rank = 0
        self._is_open = False  # whether checkpoint commands are accepted
        self._is_steady = False  # whether this process has applied a step
        folder, identity = environment.text(environment.DIGESTS_VARIABLE), threadlet.identity
        self._digests = (
            digests.Digests(Path(folder), identity.rank, identity.generation) if folder else None
        )
        self._step_log = step_log.opened(threadlet)

    # What the program passes.

    def wrap(
        self,
        model: nn.Module,
        name: str,
        distributed: Mapping[str, Any],
        plan: "Plan | None",
        options: Mapping[str, Any],
    ) -> nn.Module:
        """Return the model for training on all ranks, and carry its state if it is replicated."""
        refuse_sharded(name or "the model", model)
        wanted: Distributed = DISTRIBUTED(distributed, "distributed")
        if is_sharded(wanted.strategy):
            return self._divide(model, wanted, plan, options)
        if plan is not None:
            raise PlanWithoutStrategy()
        is_served = wanted.strategy is Strategy.PARAMETER_SERVER
        if is_served and self._spec.distributed.get("strategy") != wanted.strategy:
            raise ServersNotStarted()
        sync = not self._place and not standin.is_on()
        wrapped = Wrapped(model, options, sync, joins=not is_served)
        self.things.add_model(name, wrapped)
        return wrapped

    def _divide(
        self, model: nn.Module, wanted: Distributed, plan: "Plan | None", options: Mapping[str, Any]
    ) -> nn.Module:
        from torchloom.worker.dist import strategies  # imported on use, with torch's engines

        if self.layout is None:
            if not dist.is_initialized() and int(environment.text("WORLD_SIZE") or 1) > 1:
                raise NoGroup()
            world = dist.get_world_size() if dist.is_initialized() else 1
            self.layout = strategies.lay_out(wanted, dist.get_rank() if world > 1 else 0, world)
        elif self.layout.distributed != wanted:
            raise OtherLayout(wanted.strategy.value, self.layout.distributed.strategy.value)
        if self.saves.settings.enabled:
            self.refuse_shards()
        return strategies.parallelize(model, self.layout, plan, **options)

    def refuse_shards(self) -> None:
        """Raise ShardsNotSaved if each rank holds only a part of the model."""
        if self.layout is not None and self.layout.is_sharded:
            raise ShardsNotSaved(self.layout.distributed.strategy.value)

    @property
    def share(self) -> tuple[int, int]:
        """Which share of the samples this rank takes, and how many shares there are."""
        return (self.rank, self.world_size) if self.layout is None else self.layout.share

    def loader(self, dataset: Any, **more: Any) -> Loader:
        """Return a loader that deals a dataset to all ranks."""
        return Loader(dataset, SampleShare(weakref.proxy(self)), **more)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, or the value that an earlier process of this rank got."""
        if self._broadcasts is None:
            identity = self._threadlet.identity
            is_kept = environment.is_set(environment.INCARNATION_VARIABLE) and identity.page
            self._broadcasts = BroadcastValues(identity.own_folder if is_kept else None)
        value, why = self._broadcasts.share(value)
        self.unfit = self.unfit or why
        return value

    def configure_checkpoints(self, values: Mapping[str, Any]) -> None:
        """Replace the checkpoint settings of the job by those of the program."""
        self.saves.settings = checkpointing_of(values)
        if self.saves.settings.enabled:
            self.refuse_shards()

    # The ranks, and their seed.

    @property
    def rank(self) -> int:
        """This rank's number in the process group."""
        return dist.get_rank() if agreement.together() else self._threadlet.identity.rank

    @property
    def world_size(self) -> int:
        """The number of ranks that train together."""
        return (
            dist.get_world_size() if agreement.together() else self._threadlet.identity.world_size
        )

    @property
    def seed(self) -> int:
        """The seed of the run: the job's, else rank 0's at the first start."""
        if self._seed is None:
            if self._place and self.things:
                self._find_checkpoint()
            if self._seed is None:
                with standin.unnoticed():
                    seeds = agreement.gather(torch.initial_seed() & (1 << 63) - 1)
                self._order = 0 if len(set(seeds)) == 1 else self.rank + 1
                self._seed = seeds[0] if self._spec.seed is None else self._spec.seed
        return self._seed

    # The loop.

    @property
    def has_begun(self) -> bool:
        """Tell whether the first step of this process is known."""
        return self._source is not None

    def begin(
        self, source: Any, first: int, epochs: int, step: int, is_extended: Callable[[], bool]
    ) -> tuple[Dealt, int] | None:
        """Begin a loop at its start or resume it; return its batches and its first step.

        None if the loop was completed before the restart.
        """
        if not self._loops:
            self.things.refuse_sharded()
        self._loops += 1
        self._is_extended = is_extended
        self._opening = lambda: open_source(
            source, first, epochs, mix("loader", self.seed, self._order)
        )
        if self.live is None and environment.is_set(environment.INCARNATION_VARIABLE):
            self.live = self._opened()
        if self.live is not None and self.live.is_new:
            return self._begin_beside_others(self.live)
        if self.things and not self._has_searched:
            self._find_checkpoint()
        if self._found is not None and self._found.loaded.own["loop"] > self._loops:
            return None
        self._source = self._opening()
        if self._found is not None:
            step, self._found = self._restore(self._found), None
        self._rank = self.rank
        if self.things and not self._is_open:
            self._open(step)
        if self.live is not None:
            self._watch(self.live)
            self.live.begin(step)
        return deal(self._source, self._is_extended), step

    def _opened(self) -> "RankRecovery | None":
        from torchloom.worker.recovery import recovery  # imported on use

        return recovery.opened(self, self._threadlet)

    def _open(self, step: int, is_alone: bool = False) -> None:
        self._is_open = True
        self._threadlet.acts.loggers.append(self._log_digests)
        self.saves.begin(step, lambda at: self.save(at, "command"), is_alone)

    def _log_digests(self, log: str) -> None:
        self._step_log = step_log.switched(self._threadlet, log)

    def boundary(self, step: int) -> None:
        """Before a step: save if a checkpoint is due, and seed the generators for the step."""
        if not self.things:
            return
        if self._digests is not None:
            self._digests.write(step, self.things.tensors())
        self._step_log.note(step, self.things, self._source)
        if trigger := self.saves.due(step):
            self.save(step, trigger)
        if self._is_steady:
            self.saves.prepare(self._capture)
        self._is_steady = True
        self._at = step
        self.things.begin_step()
        seed_generators(mix("step", self._seed or 0, self._rank, step))

    def save(self, step: int, trigger: str) -> None:
        """Save the state before this step."""
        if self.things:
            facts = {"optimizer_state": self.things.has_optimizer}
            self.saves.save(step, trigger, self._capture, facts)

    def finish(self, step: int, trigger: str, anyway: bool = False) -> None:
        """End a loop: save the last checkpoint and wait until it is written."""
        if not self.things:
            return
        if self._digests is not None:
            self._digests.write(step, self.things.tensors())
        self._step_log.note(step, self.things, self._source)
        if self.saves.settings.enabled or self.saves.wanted or anyway:
            self.save(step, trigger)
        self.saves.finish()

    def noting(self, add: Callable[..., None]) -> Callable[..., None]:
        """Return a function that logs and keeps the last values: the best checkpoint needs them."""
        last = self.saves.metrics

        def note(step: int, values: dict[str, Any], at: int | None = None) -> None:
            add(step, values, at)
            for name, value in values.items():
                last[name] = value.detach() if isinstance(value, Tensor) else value

        return note

    # Live recovery.

    def recover(self, step: int, error: BaseException | None) -> tuple[Dealt | None, int]:
        """Continue with the new members; return the step, and the batches from it on.

        None for the batches if their loader cannot seek: the old iterator is used.
        """
        assert self.live is not None
        start = self.live.recover(step, error)
        if self._source is not None and self._source.can_seek:
            return deal(self._source, self._is_extended), start
        return None, start

    def is_begun(self, step: int) -> bool:
        """Tell whether this rank has passed the boundary before a step."""
        return self._at == step

    def common(self) -> State:
        """Return the state that a joining rank can get from any peer."""
        seeds = {"seed": self.seed, "is_mixed": bool(self._order)}
        rest = {"orders": self._threadlet.orders(), "saves": self.saves.state(), **seeds}
        return {**self.things.common(), **rest}

    def private(self) -> State:
        """Return the state that only this rank has."""
        position = self._source.position() if self._source is not None else {}
        return {**self.things.private(), "loop": self._loops, "position": position}

    def rejoin(self, start: int, generation: int, common: State | None) -> None:
        """Continue at a step of a generation, with the state of a peer if one sent it."""
        if common is not None:
            self.things.take_common(common)
            self._seed = int(common["seed"])
            self._order = self._threadlet.identity.rank + 1 if common["is_mixed"] else 0
            if self._source is None:
                self._threadlet.catch_up(start, common["orders"])
            else:
                self._threadlet.roll_forward(start, common["orders"])
        self.saves.rejoin(start, generation, None if common is None else common["saves"])
        self._at = -1
        if self._digests is not None:
            self._digests.move_on(generation)

    def take_private(self, private: State | None) -> None:
        """Load the state that only this rank had, or another rank's if that is lost."""
        is_first = self._source is None
        if self._opening is not None and is_first:
            self._source = self._opening()
        if private is None:
            return
        if int(private["loop"]) != self._loops:
            raise OtherProgram(f"the others are in loop {private['loop']}, this is {self._loops}")
        self.things.take_private(private)
        if self._source is not None and (is_first or self._source.can_seek):
            world = self._threadlet.identity.world_size
            self._source.restore(private["position"], world, world)

    def _begin_beside_others(self, live: "RankRecovery") -> tuple[Dealt, int] | None:
        """Join the running members in the place of a lost rank."""
        if live.loop() > self._loops:
            return None
        self._has_searched = True
        self._rank = self._threadlet.identity.rank
        self._open(0, is_alone=True)
        step = live.arrive()
        self._watch(live)
        assert self._source is not None
        return deal(self._source, self._is_extended), step

    def _watch(self, live: "RankRecovery") -> None:
        """Have the page of each step written after its forward pass."""
        for model in self.things.models.values():
            model.register_training_forward_hook(lambda: live.note(self._at))

    # Save and restore.

    def _capture(self) -> tuple[State, State]:
        position = self._source.position() if self._source is not None else {}
        self.saves.epoch = int(position.get("epoch", 0))
        where = {"loop": self._loops, "position": position}
        seeds = {"seed": self.seed, "order": self._order}
        shared = {**self.things.shared(), "knobs": self._threadlet.optimizers.state()}
        return shared, {**self.things.own(), **where, **seeds}

    def _find_checkpoint(self) -> None:
        """Find the checkpoint to resume from, once. A collective call."""
        self._has_searched = True
        if not self._place:
            return
        self._since = time.monotonic()
        report = self._threadlet.event
        self._found = checkpoints.find(self._place, self.rank, self.world_size, report)
        if self._found is None:
            self._begin_anew()
        else:
            own = self._found.loaded.own
            self._seed, self._order = int(own["seed"]), int(own["order"])
            if not self._found.loaded.exact_world and self._order:
                self._order = self.rank + 1

    def _begin_anew(self) -> None:
        why = f"no checkpoint of {self._place.rpartition('/')[0]} is intact"
        sys.stderr.write(f"loom: {why}: the run begins at step 0\n")
        for model in self.things.models.values():
            model.rebuild(sync=True)
        self._report_restored(0, "", why)
        self._place = ""

    def _restore(self, found: FoundCheckpoint) -> int:
        """Load the checkpoint; return its step."""
        loaded, step = found.loaded, int(found.loaded.step)
        own = dict(loaded.own)
        if not loaded.exact_world:
            own.pop("gradients", None)  # of another set of ranks
        whys = differences(loaded, self.things, self.world_size)
        whys += self.things.put_back(loaded.shared, own)
        if self._source is not None:
            whys.append(
                self._source.restore(own["position"], loaded.manifest.world_size, self.world_size)
            )
        if found.root == self.saves.root:
            self.saves.saved = step
        self.resumed_from = step
        self._threadlet.resume_at(step, loaded.shared["knobs"])
        why = "; ".join(filter(None, whys))
        self._report_restored(step, found.place, why)
        if why and self.rank == 0:
            sys.stderr.write(f"loom: resumed at step {step}, not bit-exact: {why}\n")
        return step

    def _report_restored(self, step: int, place: str, why: str) -> None:
        seconds = round(time.monotonic() - self._since, 3)
        facts: dict[str, Any] = {"step": step, "checkpoint": place, "seconds": seconds}
        self._threadlet.event("restored", {**facts, "exact": not why, "why": why})


def checkpointing_of(values: Mapping[str, Any]) -> Checkpointing:
    """Return the checkpoint settings of a job; they were checked when it was submitted."""
    known = {name: values[name] for name in Checkpointing.__slots__ if name in values}
    if "mode" in known:
        known["mode"] = Mode(known["mode"])
    return replace(Checkpointing(), **known)
