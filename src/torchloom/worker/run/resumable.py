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
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import (
    Algorithm,
    Checkpointing,
    Compression,
    Distributed,
    Mode,
    Strategy,
)
from torchloom.specs.jobspec_shape import (
    COMPRESSION,
    DISTRIBUTED,
    K_KNOB,
    SYNC_KNOB,
    section_problems,
    with_defaults,
)
from torchloom.specs.mesh import coordinates, is_sharded, sizes_of
from torchloom.worker import environment
from torchloom.worker.recovery import standin
from torchloom.worker.run import agreement, checkpoints, digests, divided, step_log
from torchloom.worker.run.agreement import BroadcastValues
from torchloom.worker.run.checkpoints import CheckpointSaves, FoundCheckpoint, versions
from torchloom.worker.run.loader import BatchSource, Dealt, Loader, deal, open_source
from torchloom.worker.run.parts import Parts, RankMesh, is_divided
from torchloom.worker.run.rng import mix, seed_generators
from torchloom.worker.run.tracked_state import (
    OtherProgram,
    State,
    TrackedState,
    refuse_unnamed,
)
from torchloom.worker.run.wrap import NoGroup, Wrapped
from torchloom.worker.threadlet.rank_identity import SubmittedJob
from torchloom.worker.threadlet.threadlet import Threadlet

if TYPE_CHECKING:
    from torchloom.worker.dist.strategies import ParallelLayout, Plan
    from torchloom.worker.recovery.recovery import RankRecovery
    from torchloom.worker.run.exchange import GradientExchange, PlannedMean

MOST_LOCAL = 1 << 30  # steps between two exchanges of weights
_LOCAL = "its weights differ from those of other ranks between two exchanges (sync_every)"
LEAST_SHARE = 1e-6  # of gradients that are sent
_FIXED = "NCCL_ALGO"  # NCCL sums in a fixed order only with a fixed algorithm


def _sizes(mesh: Mapping[str, int] | None) -> str:
    """Return a mesh in words."""
    named = (f"{name} {size}" for name, size in (mesh or {}).items() if size > 1)
    return " x ".join(named) or "replicated"


def differences(
    loaded: Any, things: TrackedState, world_size: int, mesh: Mapping[str, int] | None = None
) -> list[str]:
    """Return why a resumed run is not bit-exact: what changed, or cannot be checked."""
    found = []
    if loaded.manifest.world_size != world_size:
        found.append(f"world size {loaded.manifest.world_size} -> {world_size}")
    elif not loaded.exact_world:
        before = loaded.manifest.sharding
        found.append(f"mesh {_sizes(before and before.mesh)} -> {_sizes(mesh)}")
    if not (things.modules() or things.foreign) and mesh is None:
        found.append("no model is wrapped by run.wrap")
    now = {"torch": versions()["torch"], **things.versions}
    found += [
        f"{name} {was} -> {now[name]}"
        for name, was in loaded.manifest.versions.items()
        if name in now and was != now[name]
    ]
    if agreement.backend() not in ("", "gloo") and not environment.is_set(_FIXED):
        found.append(f"{agreement.backend()} may sum in another order: set {_FIXED}")
    if things.devices() - {"cpu"} and not torch.are_deterministic_algorithms_enabled():
        found.append("torch.use_deterministic_algorithms is off")
    return found


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
        self.exchanges: dict[str, GradientExchange] = {}  # of models, by name
        self._planned: PlannedMean | None = None  # how gradients are added up over hosts
        self._start = 0  # the first step of this generation
        self._counted = -2  # the last step that began, where ranks step by themselves
        self._broadcasts: BroadcastValues | None = None
        self._share = 0  # of the samples, by which this rank draws
        self._mesh: RankMesh | None = None  # over which state is divided
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
        compression: Mapping[str, Any] | str,
        options: Mapping[str, Any],
    ) -> nn.Module:
        """Return the model for training on all ranks, and carry its state if it is replicated."""
        refuse_unnamed(name or "the model", model)
        wanted: Distributed = DISTRIBUTED(distributed, "distributed")
        compressed = compression_of(compression)
        if is_sharded(wanted.strategy):
            if compressed.enabled:
                problem = f"is for data_parallel, and this is {wanted.strategy.value}: turn it off"
                raise SpecError("compression.enabled", problem)
            divided = self._divide(model, wanted, plan, options)
            self.things.add_model(name, divided)
            return divided
        if plan is not None:
            raise PlanWithoutStrategy()
        name = self.things.name_of(name)
        if any(map(is_divided, model.parameters())):  # by the program itself
            self.things.add_model(name, model)
            return model
        sync = not self._place and not standin.is_on()
        if wanted.strategy is Strategy.PARAMETER_SERVER:
            if self._spec.distributed.get("strategy") != wanted.strategy:
                raise ServersNotStarted()
            served = Wrapped(model, options, sync, is_local=True)
            self.things.add_model(name, served)
            return served
        if compressed.sync_every is not None and compressed.enabled:
            return self._wrap_local(name, model, with_defaults(compressed), options, sync)
        exchange: GradientExchange | PlannedMean | None = self._planned_mean()
        if compressed.enabled:
            exchange = self._exchange_of(name, model, compressed)
        wrapped = Wrapped(model, options, sync, exchange)
        self.things.add_model(name, wrapped)
        return wrapped

    def _wrap_local(
        self,
        name: str,
        model: nn.Module,
        given: Compression,
        options: Mapping[str, Any],
        sync: bool,
    ) -> nn.Module:
        """Return a model whose weights are exchanged now and then, instead of its gradients."""
        from torchloom.worker.run.exchange import WeightExchange  # imported on use

        if not dist.is_initialized() and int(environment.text("WORLD_SIZE") or 1) > 1:
            raise NoGroup()
        every = self._knob(SYNC_KNOB, given.sync_every, 1, MOST_LOCAL)
        outer = self.things.outer[name] = WeightExchange(model, given, every)
        outer.start(is_sent=sync)
        self.things.add_model(name, Wrapped(model, options, sync, is_local=True))
        return self.things.models[name]

    def _planned_mean(self) -> "PlannedMean | None":
        """Return how gradients are added up over several hosts.

        All ranks decide alike: a host may have one rank while others have several.
        """
        identity, near = self._threadlet.identity, environment.text("LOCAL_WORLD_SIZE")
        if not (near.isdecimal() and int(near) < identity.world_size):
            return None
        if self._planned is None:
            from torchloom.worker.run.exchange import PlannedMean  # imported on use

            self._planned = PlannedMean()
        return self._planned

    def _choose_plan(self, before: State | None) -> None:
        """Decide, at the first step of a run, how gradients are added up. A collective call."""
        planned = self._planned
        if planned is None or planned.plan is not None or not agreement.together():
            return
        facts = planned.choose(self._threadlet.identity.node, before)
        if facts and self.rank == 0:
            if planned.why:
                facts |= {"exact": False, "why": f"not bit-exact: {planned.why}"}
            self._threadlet.event("all_reduce", facts)

    def _exchange_of(
        self, name: str, model: nn.Module, given: Compression
    ) -> "GradientExchange | None":
        """Return how the gradients of a model are compressed."""
        from torchloom.worker.run import exchange  # imported on use, with torch's hooks

        options, identity = with_defaults(given), self._threadlet.identity
        is_kept = environment.is_set(environment.INCARNATION_VARIABLE) and identity.page
        is_topk = options.algorithm is Algorithm.TOPK
        share = self._knob(K_KNOB, options.k, LEAST_SHARE, 1.0) if is_topk else None
        self.exchanges[name] = exchange.GradientExchange(
            name,
            model,
            options,
            identity.own_folder if is_kept else None,
            share,
            self.things.optimizers,
        )
        return self.exchanges[name]

    def _knob(self, name: str, value: Any, low: float, high: float) -> Callable[[], Any]:
        """Register a knob of the run itself; return what reads it, and reports that it did."""
        knobs, acts = self._threadlet.knobs, self._threadlet.acts
        known = knobs.get(name)
        knob = knobs.declare(name, value if known is None else known.value, low, high)
        acts.make_up()
        self._threadlet.introduce()

        def read() -> Any:
            if knob.unread is not None or not knob.is_read:
                acts.read(knob)
            return knob.value

        return read

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
        return strategies.parallelize(model, self.layout, plan, **options)

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
                self._order = 0 if len(set(seeds)) == 1 else self.share[0] + 1
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
            self._mesh = self._find_mesh()
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
        self._choose_plan(None if self._found is None else self._found.loaded.shared.get("reduce"))
        self._source = self._opening()
        if self._found is not None:
            step, self._found = self._restore(self._found), None
        self._share = self.share[0]
        if self.things and not self._is_open:
            self._open(step)
        if self.live is not None:
            self._watch(self.live)
            self.live.begin(step, _LOCAL if self.things.outer else "")
        return deal(self._source, self._is_extended), step

    def _find_mesh(self) -> RankMesh | None:
        """Return the mesh over which state is divided; None where every rank holds all of it."""
        if self.layout is not None and self.layout.is_sharded:
            mesh, rank = self.layout.mesh, self.layout.rank
            at = {"pp": coordinates(mesh, rank)["pp"]} if mesh.pp > 1 else {}
            return RankMesh(sizes_of(mesh), rank, at)
        return divided.mesh_of(self.things, self.rank, self.world_size)

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
        self._count_local(step)
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
        for exchange in self.exchanges.values():
            exchange.begin_step(step)
        seed_generators(mix("step", self._seed or 0, self._share, step))

    def _count_local(self, step: int) -> None:
        """Count the step that has just been completed, if any, where ranks step by themselves."""
        is_done, self._counted = self._counted == step - 1, step
        for outer in self.things.outer.values() if is_done else ():
            outer.passed()

    def save(self, step: int, trigger: str) -> None:
        """Save the state before this step."""
        if self.things:
            has_state = self.things.has_optimizer or bool(self.things.foreign)
            facts: dict[str, Any] = {"optimizer_state": has_state, "versions": self.things.versions}
            if self._mesh is not None:
                chosen = self.layout.distributed.strategy if self.layout is not None else None
                facts["strategy"] = "sharded" if chosen is None else chosen.value
            if plan := self._plan_state():
                facts["versions"] = {"all_reduce": plan["way"]}
            self.saves.save(step, trigger, self._capture, facts)

    def finish(self, step: int, trigger: str, anyway: bool = False) -> None:
        """End a loop: save the last checkpoint and wait until it is written."""
        if not self.things:
            return
        self._count_local(step)
        for outer in self.things.outer.values() if trigger == "end" else ():
            outer.finish()
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
        return {**self.things.common(), **rest, "reduce": self._plan_state()}

    def _plan_state(self) -> State | None:
        planned = self._planned
        return None if planned is None or planned.plan is None else planned.plan.state()

    def private(self) -> State:
        """Return the state that only this rank has."""
        position = self._source.position() if self._source is not None else {}
        rank = self._threadlet.identity.rank
        pages = {name: exchange.page(rank) for name, exchange in self.exchanges.items()}
        state = {"loop": self._loops, "position": position, "exchange": pages}
        return {**self.things.private(), **state}

    def rejoin(self, start: int, generation: int, common: State | None) -> None:
        """Continue at a step of a generation, with the state of a peer if one sent it."""
        if common is not None:
            self.things.take_common(common)
            self._seed = int(common["seed"])
            if self._planned is not None and (plan := common.get("reduce")) is not None:
                self._planned.take(plan)
            self._order = self._threadlet.identity.rank + 1 if common["is_mixed"] else 0
            if self._source is None:
                self._threadlet.catch_up(start, common["orders"])
            else:
                self._threadlet.roll_forward(start, common["orders"])
        self.saves.rejoin(start, generation, None if common is None else common["saves"])
        self._at, self._start = -1, start
        if self._digests is not None:
            self._digests.move_on(generation)

    def take_private(self, private: State | None) -> None:
        """Load the state that only this rank had, or another rank's if that is lost."""
        is_first = self._source is None
        if self._opening is not None and is_first:
            self._source = self._opening()
        self._rejoin_exchanges(None if private is None else private.get("exchange", {}))
        if private is None:
            return
        if int(private["loop"]) != self._loops:
            raise OtherProgram(f"the others are in loop {private['loop']}, this is {self._loops}")
        self.things.take_private(private)
        if self._source is not None and (is_first or self._source.can_seek):
            world = self._threadlet.identity.world_size
            self._source.restore(private["position"], world, world)

    def _rejoin_exchanges(self, pages: State | None) -> None:
        assert self.live is not None
        rank, is_new = self._threadlet.identity.rank, self.live.is_new
        for name, exchange in self.exchanges.items():
            page = None if pages is None else pages.get(name)
            if why := exchange.rejoin(self._start, rank, page, is_new):
                sys.stderr.write(f"loom: rank {rank} continues, not bit-exact: {why}\n")
                facts: dict[str, Any] = {
                    "step": self._start,
                    "model": name,
                    "exact": False,
                    "why": why,
                }
                self._threadlet.event("compression_lost", facts)

    def _begin_beside_others(self, live: "RankRecovery") -> tuple[Dealt, int] | None:
        """Join the running members in the place of a lost rank."""
        if live.loop() > self._loops:
            return None
        self._has_searched = True
        self._share = self._threadlet.identity.rank
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

    def _capture(self) -> tuple[State, State, Parts | None]:
        position = self._source.position() if self._source is not None else {}
        self.saves.epoch = int(position.get("epoch", 0))
        where = {"loop": self._loops, "position": position}
        where["shares_of_samples"] = self.share[1]
        seeds = {"seed": self.seed, "order": self._order}
        parts: Parts | None = None
        if self._mesh is None:
            shared, own = self.things.shared(), self.things.own()
            shared["names"] = self.things.parameter_names()
        else:
            shared, own, parts = divided.take(self.things, self._mesh)
        shared["knobs"] = self._threadlet.optimizers.state()
        if plan := self._plan_state():
            shared["reduce"] = plan
        sent = {name: exchange.state() for name, exchange in self.exchanges.items()}
        return shared, {**own, **where, **seeds, "exchange": sent}, parts

    def _find_checkpoint(self) -> None:
        """Find the checkpoint to resume from, once. A collective call."""
        self._has_searched = True
        if not self._place:
            return
        self._since = time.monotonic()
        report = self._threadlet.event
        self._mesh = self._find_mesh()
        mesh = None if self._mesh is None else self._mesh.sizes
        self._found = checkpoints.find(self._place, self.rank, self.world_size, report, mesh)
        if self._found is None:
            self._begin_anew()
        else:
            own = self._found.loaded.own
            self._seed, self._order = int(own["seed"]), int(own["order"])
            if not self._found.loaded.exact_world and self._order:
                self._order = self.share[0] + 1

    def _begin_anew(self) -> None:
        why = f"no checkpoint of {self._place.rpartition('/')[0]} is intact"
        sys.stderr.write(f"loom: {why}: the run begins at step 0\n")
        for model in self.things.models.values():
            model.rebuild(sync=True)
        for outer in self.things.outer.values():
            outer.start(is_sent=True)
        self._report_restored(0, "", why)
        self._place = ""

    def _restore(self, found: FoundCheckpoint) -> int:
        """Load the checkpoint; return its step."""
        loaded, step = found.loaded, int(found.loaded.step)
        own = dict(loaded.own)
        if not loaded.exact_world:
            own.pop("gradients", None)  # of another set of ranks
            own.pop("local", None)
        mesh = None if self._mesh is None else self._mesh.sizes
        whys = differences(loaded, self.things, self.world_size, mesh)
        if self._mesh is None and loaded.parts is None:
            whys += self.things.put_back(loaded.shared, own)
        else:
            whys += divided.put_back(self.things, loaded, self._mesh)
        whys += self._load_exchanges(own.get("exchange", {}), loaded.exact_world)
        if self._source is not None:
            before = int(own.get("shares_of_samples", loaded.manifest.world_size))
            whys.append(self._source.restore(own["position"], before, self.share[1]))
        if found.root == self.saves.root:
            self.saves.saved = step
        self.resumed_from = step
        self._threadlet.resume_at(step, loaded.shared["knobs"])
        why = "; ".join(filter(None, whys))
        self._report_restored(step, found.place, why)
        if why and self.rank == 0:
            sys.stderr.write(f"loom: resumed at step {step}, not bit-exact: {why}\n")
        return step

    def _load_exchanges(self, saved: State, is_exact: bool) -> list[str]:
        """Load what was not sent yet; return why that is not possible."""
        if self.exchanges.keys() != saved.keys():
            return ["compression is switched on or off"]
        for name, exchange in self.exchanges.items() if is_exact else ():
            exchange.load(saved[name])
        return []  # another number of ranks is reported already

    def _report_restored(self, step: int, place: str, why: str) -> None:
        seconds = round(time.monotonic() - self._since, 3)
        facts: dict[str, Any] = {"step": step, "checkpoint": place, "seconds": seconds}
        self._threadlet.event("restored", {**facts, "exact": not why, "why": why})


def compression_of(values: Mapping[str, Any] | str) -> Compression:
    """Return the section that a program or its job gives; SpecError names what does not fit."""
    if isinstance(values, str):
        values = {"algorithm": values}
    found: Compression = COMPRESSION({"enabled": bool(values), **values}, "compression")
    for path, problem in section_problems(found):
        raise SpecError(path, problem)
    return found


def checkpointing_of(values: Mapping[str, Any]) -> Checkpointing:
    """Return the checkpoint settings of a job; they were checked when it was submitted."""
    known = {name: values[name] for name in Checkpointing.__slots__ if name in values}
    if "mode" in known:
        known["mode"] = Mode(known["mode"])
    return replace(Checkpointing(), **known)
