"""What a job is trained by: a mesh of its workers, and a framework; and why it does not fit them.

A worker's number in the mesh is counted with the last dimension of `ORDER` fastest, so that the
workers of one tensor-parallel group are neighbours, on one host if they fit there.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import (
    Distributed,
    Framework,
    JobSpec,
    Mesh,
    Policy,
    PushMode,
    Schedule,
    Strategy,
)
from torchloom.specs.validate import Problem

ORDER = ("pp", "dp_replicate", "dp_shard", "tp")
DATA = ("dp_replicate", "dp_shard")  # dimensions whose workers take different samples
WORKERS_PER_SERVER = 4
CHUNKS = 2  # stages of each worker under the interleaved schedule
SIZES: Mapping[str, int] = {
    "layers": 2,
    "hidden": 256,
    "width": 128,
    "heads": 4,
    "context": 64,
    "batch_size": 64,
}
_SPLITS: Mapping[Strategy, tuple[str, ...]] = {
    Strategy.DATA_PARALLEL: ("dp_replicate",),
    Strategy.FSDP: ("dp_shard",),
    Strategy.HSDP: DATA,
    Strategy.TENSOR_PARALLEL: ("tp",),
    Strategy.PIPELINE_PARALLEL: ("pp",),
    Strategy.HYBRID: ORDER,
    Strategy.PARAMETER_SERVER: ("dp_replicate",),
}
_HALVED: Mapping[Strategy, tuple[str, str]] = {  # without a mesh: 2 of the first, the rest is half
    Strategy.HSDP: ("dp_replicate", "dp_shard"),
    Strategy.HYBRID: ("tp", "dp_shard"),
}
_MESH = "distributed.mesh"


def sizes_of(mesh: Mesh) -> dict[str, int]:
    """Return the size of each dimension, in the order of the mesh."""
    return {name: getattr(mesh, name) for name in ORDER}


def mesh_of(distributed: Distributed, workers: int) -> Mesh:
    """Return the mesh of a strategy on this many workers; raise SpecError if they do not fit."""
    strategy, given = distributed.strategy, distributed.mesh
    if given is None:
        return _whole(strategy, workers)
    used = _SPLITS[strategy]
    for name, size in sizes_of(given).items():
        if size > 1 and name not in used:
            raise SpecError(f"{_MESH}.{name}", _misplaced(strategy, size, used))
    product = math.prod(sizes_of(given).values())
    if product != workers:
        shown = " x ".join(f"{name} {size}" for name, size in sizes_of(given).items() if size > 1)
        problem = f"{shown or 'every size 1'} is {product} workers, and the job has {workers}"
        raise SpecError(_MESH, f"{problem}: change a size, or resources.workers")
    return given


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return the place of a worker in each dimension."""
    found: dict[str, int] = {}
    for name in reversed(ORDER):
        rank, found[name] = divmod(rank, getattr(mesh, name))
    return {name: found[name] for name in ORDER}


def data_share(mesh: Mesh, rank: int) -> tuple[int, int]:
    """Return which share of the samples a worker takes, and how many shares there are.

    Workers of one tensor-parallel group, and those of one pipeline, take the same samples.
    """
    at = coordinates(mesh, rank)
    return at["dp_replicate"] * mesh.dp_shard + at["dp_shard"], mesh.dp_replicate * mesh.dp_shard


def is_sharded(strategy: Strategy) -> bool:
    """Tell whether each worker holds only a part of the model."""
    return strategy not in (Strategy.DATA_PARALLEL, Strategy.PARAMETER_SERVER)


def servers_of(distributed: Distributed, workers: int) -> int:
    """Return the number of parameter servers of a job; 0 for the other strategies."""
    if distributed.strategy is not Strategy.PARAMETER_SERVER:
        return 0
    return distributed.servers or max(1, workers // WORKERS_PER_SERVER)


def mesh_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield why a job cannot be trained by its strategy, by field."""
    try:
        mesh = mesh_of(spec.distributed, spec.resources.workers)
    except SpecError as error:
        yield error.path, error.problem
        return
    if is_sharded(spec.distributed.strategy):
        yield from _missing(spec)
    if spec.distributed.sequence_parallel:
        yield from _sequence_problems(spec, mesh)
    if mesh.tp > 1:
        yield from _tensor_problems(spec, mesh.tp)
    yield from _pipeline_problems(spec, mesh.pp)
    yield from _server_problems(spec)


def _server_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield why a job cannot be trained with parameter servers."""
    chosen = spec.distributed
    if chosen.strategy is not Strategy.PARAMETER_SERVER:
        for name in ("servers", "push", "staleness"):
            if getattr(chosen, name) is not None:
                yield f"distributed.{name}", "is for the strategy parameter_server: remove it"
        return
    if not spec.model:
        problem = "parameter_server trains ready-made models: give model and dataset, or another"
        yield "distributed.strategy", f"{problem} strategy for a program"
    workers = spec.resources.workers
    if (chosen.servers or 1) > workers:
        problem = f"{chosen.servers} servers for {workers} workers: give as many at most"
        yield "distributed.servers", problem
    if chosen.staleness is not None and chosen.push is not PushMode.ASYNC:
        yield "distributed.staleness", "is for push async: remove it, or give push: async"
    if spec.recovery.policy in (Policy.LIVE, Policy.SHRINK):
        problem = f"{spec.recovery.policy.value} cannot carry what servers hold"
        yield "recovery.policy", f"{problem}: take restart or fail"
    if spec.elastic is not None:
        yield "elastic", "parameter servers have a fixed number of workers: remove it"
    if spec.compression.enabled:
        yield "compression.enabled", "servers take whole gradients: turn it off"
    if spec.hyperparameters.get("clip") or "clip" in spec.knobs:
        where = "hyperparameters.clip" if spec.hyperparameters.get("clip") else "knobs.clip"
        yield where, "no server has all gradients, whose norm it limits: leave it out"
    if spec.hyperparameters.get("amp") == "fp16":
        yield (
            "hyperparameters.amp",
            "fp16 scales gradients, which servers do not: take bf16, or off",
        )


def _whole(strategy: Strategy, workers: int) -> Mesh:
    """Return the mesh of a job that names none: it takes all workers."""
    if strategy not in _HALVED:
        return Mesh(**{_SPLITS[strategy][0]: workers})
    first, second = _HALVED[strategy]
    if workers < 4 or workers % 2:
        problem = f"missing: {strategy.value} takes an even number of workers without a mesh"
        raise SpecError(_MESH, f"{problem}, 4 or more, not {workers}; give {_names(strategy)}")
    return Mesh(**{first: 2, second: workers // 2})


def _names(strategy: Strategy) -> str:
    return " and ".join(_SPLITS[strategy])


def _misplaced(strategy: Strategy, size: int, used: tuple[str, ...]) -> str:
    return (
        f"is {size}, and {strategy.value} divides the workers by {' and '.join(used)} only:"
        " remove it, or take the strategy hybrid"
    )


def _missing(spec: JobSpec) -> Iterator[Problem]:
    """Yield what sharded training cannot do yet."""
    name = spec.distributed.strategy.value
    if spec.recovery.policy in (Policy.LIVE, Policy.SHRINK):
        policy = spec.recovery.policy.value
        problem = f"{policy} cannot carry the shards of {name}: take restart or fail"
        yield "recovery.policy", problem
    if spec.elastic is not None:
        yield "elastic", f"the mesh of {name} has a fixed number of workers: remove it"


def _sequence_problems(spec: JobSpec, mesh: Mesh) -> Iterator[Problem]:
    path = "distributed.sequence_parallel"
    if mesh.tp == 1:
        yield path, "divides what tensor parallelism leaves whole: give the mesh a tp of 2 or more"
    elif spec.model in ("mlp", "cnn"):
        yield path, f"{spec.model} has no sequences: remove it, or take the model transformer"
    elif spec.model == "transformer" and spec.dataset.startswith("text"):
        yield from _undivided(spec, "context", mesh.tp, "bytes of a window")


def _tensor_problems(spec: JobSpec, size: int) -> Iterator[Problem]:
    """Yield which sizes of a ready-made model cannot be divided by tensor parallelism."""
    if spec.model == "cnn":
        yield "model", "cnn has no plan for tensor parallelism: take mlp or transformer, or fsdp"
    elif spec.model == "mlp":
        yield from _undivided(spec, "hidden", size, "units of a hidden layer")
    elif spec.model == "transformer":
        yield from _undivided(spec, "heads", size, "heads")


def schedule_of(distributed: Distributed) -> Schedule:
    """Return the schedule of a pipeline."""
    return distributed.schedule or Schedule.ONE_F_ONE_B


def microbatches_of(distributed: Distributed, mesh: Mesh) -> int:
    """Return into how many parts a pipeline cuts a batch."""
    return distributed.microbatches or mesh.pp


def _pipeline_problems(spec: JobSpec, size: int) -> Iterator[Problem]:
    """Yield why a job cannot be trained in this many stages."""
    chosen = spec.distributed
    if size == 1:
        for name in ("schedule", "microbatches"):
            if getattr(chosen, name) is not None:
                yield f"distributed.{name}", "is for a pipeline: give the mesh a pp of 2 or more"
        return
    schedule, parts = schedule_of(chosen), chosen.microbatches or size
    if schedule is not Schedule.GPIPE and parts % size:
        problem = f"{parts} cannot be dealt to {size} stages by {schedule.value}"
        yield "distributed.microbatches", f"{problem}: give a multiple of {size}"
    yield from _stage_problems(spec, size * (CHUNKS if schedule is Schedule.INTERLEAVED else 1))
    if spec.model and spec.hyperparameters.get("amp") == "fp16":
        problem = "fp16 scales losses, which a pipeline does not: take bf16, or off"
        yield "hyperparameters.amp", problem
    batch = spec.hyperparameters.get("batch_size", SIZES["batch_size"])
    if spec.model and isinstance(batch, int) and batch % parts:
        problem = f"{batch} samples cannot be cut into {parts} microbatches"
        yield "hyperparameters.batch_size", f"{problem}: give a multiple of {parts}"


def _stage_problems(spec: JobSpec, stages: int) -> Iterator[Problem]:
    layers = spec.hyperparameters.get("layers", SIZES["layers"])
    if spec.model == "cnn":
        yield "model", "cnn has no plan for a pipeline: take mlp or transformer, or fsdp"
    elif spec.model in ("mlp", "transformer") and isinstance(layers, int):
        found = layers + (spec.model == "mlp")  # hidden layers, and the last one
        if found < stages:
            problem = f"{spec.model} has {found} layers for {stages} stages"
            more = stages - (spec.model == "mlp")
            yield "hyperparameters.layers", f"{problem}: give {more} or more"


def _undivided(spec: JobSpec, name: str, size: int, what: str) -> Iterator[Problem]:
    found = spec.hyperparameters.get(name, SIZES[name])
    if isinstance(found, int) and found % size:  # the trainer refuses what is no number
        problem = f"{found} {what} cannot be divided among tp {size}: give a multiple of {size}"
        yield f"hyperparameters.{name}", problem


# What each framework of a ready-made training can do.

MODULE = "module:"  # prefix of the name of a user's function
_REPLICATED = (Strategy.DATA_PARALLEL,)
_PRECISION = "hyperparameters.amp"
_READERS = "hyperparameters.loader_workers"


@dataclass(frozen=True, slots=True)
class FrameworkLimits:
    """What a framework is trained with here."""

    package: str  # that a worker imports
    extra: str  # that installs it
    models: tuple[str, ...] = ()  # of ours; empty: not models of ours
    data: tuple[str, ...] = ()  # kinds of datasets; empty: all
    strategies: tuple[Strategy, ...] = tuple(Strategy)
    precisions: tuple[str, ...] = ("off", "bf16", "fp16")
    is_torch: bool = True  # whether torch computes


LIMITS: Mapping[Framework, FrameworkLimits] = {
    Framework.PYTORCH: FrameworkLimits("torch", "torch", ("mlp", "cnn", "transformer")),
    Framework.JAX: FrameworkLimits(
        *("jax", "jax", ("mlp", "transformer"), ()),
        strategies=_REPLICATED,
        precisions=("off", "bf16"),
        is_torch=False,
    ),
    Framework.TENSORFLOW: FrameworkLimits(
        *("tensorflow", "tensorflow", ("mlp",), ()),
        strategies=_REPLICATED,
        precisions=("off",),
        is_torch=False,
    ),
    Framework.HUGGINGFACE: FrameworkLimits(
        *("transformers", "transformers", (), ("text",)), strategies=_REPLICATED
    ),
}


def framework_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield why a job cannot be trained by its framework, by field."""
    framework, limits = spec.framework, LIMITS[spec.framework]
    if framework is Framework.PYTORCH:
        return
    if not spec.model:
        problem = f"{framework} is for a ready-made training: remove it"
        yield "framework", f"{problem}; a program of your own imports what it needs"
        return
    yield from _model_problems(spec, limits)
    yield from _training_problems(spec, limits)
    if not limits.is_torch:
        yield from _foreign_problems(spec)


def _model_problems(spec: JobSpec, limits: FrameworkLimits) -> Iterator[Problem]:
    framework, model = spec.framework, shorten(spec.model)
    if limits.models and spec.model not in limits.models:
        known = " or ".join(limits.models)
        yield "model", f"{framework} has no model {model}: take {known}, or framework pytorch"
    elif not limits.models and _is_ours(spec.model):
        what = "a type of transformers, such as gpt2, or the path of a config.json"
        yield "model", f"{model} is not {what}: give one, or take framework pytorch"
    if not limits.models and "dropout" in spec.hyperparameters:
        problem = "is in the configuration of the model itself: remove it, or give a config.json"
        yield "hyperparameters.dropout", problem
    kind = spec.dataset.partition(":")[0]
    if limits.data and kind not in limits.data:
        there = " or ".join(f"{kind}:FILE" for kind in limits.data)
        yield "dataset", f"{framework} trains language models here: take {there}"


def _is_ours(model: str) -> bool:
    return model in LIMITS[Framework.PYTORCH].models or model.startswith(MODULE)


def _training_problems(spec: JobSpec, limits: FrameworkLimits) -> Iterator[Problem]:
    strategy, precision = spec.distributed.strategy, spec.hyperparameters.get("amp")
    if strategy not in limits.strategies:
        there = ", ".join(limits.strategies)
        problem = f"{strategy.value} is not there for {spec.framework}: take {there}"
        yield "distributed.strategy", f"{problem}, or framework pytorch"
    if isinstance(precision, str) and precision not in limits.precisions:
        there = " or ".join(limits.precisions)
        yield _PRECISION, f"{spec.framework} has no {shorten(precision)} here: take {there}"


def _foreign_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what cannot be, where the ranks exchange gradients without torch."""
    if spec.recovery.policy in (Policy.LIVE, Policy.SHRINK):
        problem = f"{spec.recovery.policy.value} cannot replace a worker of {spec.framework}"
        yield "recovery.policy", f"{problem}, which ends with its peers: take restart or fail"
    if spec.compression.enabled:
        problem = f"{spec.framework} exchanges gradients as they are"
        yield "compression.enabled", f"{problem}: leave it out, or take framework pytorch"
    if spec.hyperparameters.get("loader_workers"):
        problem = f"{spec.framework} has threads that a forked reader would lack"
        yield _READERS, f"{problem}: remove it, each worker reads its data itself"


assert {each.name for each in fields(Mesh)} == set(ORDER)
