"""The JAX adapter: `jit` over a mesh of all ranks' devices, each with a share of the samples.

This module and the models beside it are the only ones that import JAX.
"""

import functools
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import jax
import numpy
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker import environment
from torchloom.worker.train.adapter import WorkerPlan
from torchloom.worker.train.foreign import (
    Arrays,
    Engine,
    ForeignAdapter,
    ForeignPair,
    Moments,
    Rates,
    addresses_of,
    moved,
)
from torchloom.worker.train.hyperparameters import Hyper
from torchloom.worker.train.jax_models import MODELS, Weights
from torchloom.worker.train.pytorch import seed_of

_AXIS = "data"
_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_UNTYPED: Any = jax  # what has no types there
_placed = _UNTYPED.make_array_from_process_local_data
_spec_of: Any = PartitionSpec
_PART, _WHOLE = _spec_of(_AXIS), _spec_of()


class JaxAdapter(ForeignAdapter):
    """Data-parallel training with JAX."""

    def start(self, plan: WorkerPlan, rank: int, world_size: int) -> Engine:
        """Join the other ranks; their CPUs exchange gradients over gloo."""
        if not plan.gpus:
            _UNTYPED.config.update("jax_platforms", "cpu")
        _UNTYPED.config.update("jax_cpu_collectives_implementation", "gloo")
        if world_size > 1:
            _join(rank, world_size)
        if plan.gpus and jax.local_devices()[0].platform == "cpu":
            problem = f"is {plan.gpus}, and JAX sees no GPU"
            raise SpecError("resources.gpus_per_worker", f"{problem}: set it to 0")
        return JaxEngine()


def _join(rank: int, world_size: int) -> None:
    """Meet the other ranks at the launcher's address for JAX, else at one that rank 0 chooses."""
    if environment.is_set(_ADDRESS):
        address = environment.text(_ADDRESS)
    else:
        address = addresses_of(rank, world_size)[0]
    jax.distributed.initialize(address, world_size, rank)


class JaxEngine:
    """Compiled functions over the mesh of all devices."""

    name = "jax"
    version = jax.__version__

    def __init__(self) -> None:
        self._mesh = Mesh(numpy.array(jax.devices()), (_AXIS,))
        self._part = NamedSharding(self._mesh, _PART)
        self._whole = NamedSharding(self._mesh, _WHOLE)
        self.devices = jax.local_device_count()
        self._count = jax.device_count()
        self._compiled: tuple[JobSpec, Any, Any] | None = None  # of the job that is trained
        self._move = jax.jit(_move, static_argnums=0, out_shardings=self._whole)
        self._add = jax.jit(functools.partial(jax.tree.map, jnp.add))

    def put(self, array: "numpy.ndarray[Any, Any]") -> Array:
        """Return an array that is on every device of every rank."""
        found: Array = _placed(self._whole, array, array.shape)
        return found

    def get(self, array: Array) -> "numpy.ndarray[Any, Any]":
        """Return a copy of such an array."""
        return numpy.array(array.addressable_data(0))

    def gradients(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pairs: list[ForeignPair], step: int
    ) -> tuple[Any, float, float]:
        """Return gradients that are not exchanged yet, this rank's loss and right predictions."""
        run, _ = self._functions(spec, hyper)
        total, losses, rights = None, [], []
        for number, pair in enumerate(pairs):
            place = numpy.array([step, number], numpy.uint32)
            inputs = self._dealt(pair.samples), self._dealt(pair.targets)
            found, loss, right = run(weights, *inputs, numpy.float32(pair.weight), place)
            total = found if total is None else self._add(total, found)
            losses.append(_mean(loss))
            rights.append((_mean(right), len(pair.targets)))
        counted = sum(count for _, count in rights)
        share = sum(right * count for right, count in rights) / counted
        return total, sum(losses), share

    def move(
        self, hyper: Hyper, weights: Arrays, gradients: Any, moments: Moments, rates: Rates
    ) -> tuple[Arrays, Moments]:
        """Exchange the gradients and take a step."""
        numbers = tuple(numpy.float32(each) for each in astuple(rates))
        found: tuple[Arrays, Moments]
        found = self._move(hyper.optimizer, weights, gradients, moments, numbers)
        return found

    def score(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pair: ForeignPair
    ) -> tuple[float, float, int]:
        """Return mean loss, right predictions and predictions of a batch, on one device."""
        _, score = self._functions(spec, hyper)
        own = {name: each.addressable_data(0) for name, each in weights.items()}
        loss, right = score(own, pair.samples, pair.targets, None)
        return float(loss), float(right) * pair.targets.size, pair.targets.size

    def _dealt(self, own: "numpy.ndarray[Any, Any]") -> Array:
        """Return the samples of all ranks, of which this one has its own."""
        shape = (len(own) * (self._count // self.devices), *own.shape[1:])
        found: Array = _placed(self._part, own, shape)
        return found

    def _functions(self, spec: JobSpec, hyper: Hyper) -> tuple[Any, Any]:
        """Return the passes of each device over its own samples, and of this one over any."""
        if self._compiled is None or self._compiled[0] is not spec:
            loss_of = _loss_of(spec, hyper)
            dealt = (_WHOLE, _PART, _PART, _WHOLE, _WHOLE)
            sharded = jax.shard_map(
                functools.partial(_pass, loss_of, seed_of(spec) + 1),
                mesh=self._mesh,
                in_specs=dealt,
                out_specs=_PART,
                check_vma=False,
            )
            self._compiled = spec, jax.jit(sharded), jax.jit(loss_of)
        return self._compiled[1:]


def _loss_of(spec: JobSpec, hyper: Hyper) -> Any:
    """Return the function of a job's mean loss and share of right predictions."""
    forward = MODELS[spec.model]

    def loss_of(
        weights: Weights, samples: Array, targets: Array, key: Array | None
    ) -> tuple[Array, Array]:
        if hyper.amp == "bf16":
            weights = {name: each.astype(jnp.bfloat16) for name, each in weights.items()}
            if jnp.issubdtype(samples.dtype, jnp.floating):
                samples = samples.astype(jnp.bfloat16)
        logits = forward(hyper, weights, samples, key).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        losses = jax.nn.logsumexp(logits, axis=-1) - chosen
        return losses.mean(), (logits.argmax(-1) == targets).astype(jnp.float32).mean()

    return loss_of


def _pass(
    loss_of: Any,
    seed: int,
    weights: Weights,
    samples: Array,
    targets: Array,
    weight: Array,
    place: Array,
) -> tuple[Weights, Array, Array]:
    """Return gradients, weighted loss and right predictions of one device's samples."""
    key = jax.random.key(seed)
    for number in (*place, jax.lax.axis_index(_AXIS)):
        key = jax.random.fold_in(key, number)

    def weighted(weights: Weights) -> tuple[Array, Array]:
        loss, right = loss_of(weights, samples, targets, key)
        return loss * weight, right

    (loss, right), gradients = jax.value_and_grad(weighted, has_aux=True)(weights)
    return jax.tree.map(lambda each: each[None], gradients), loss[None], right[None]


def _move(
    optimizer: str, weights: Weights, gradients: Weights, moments: Moments, numbers: Sequence[Any]
) -> tuple[Weights, Moments]:
    """Take a step with the mean of the gradients over the devices."""
    means = {name: each.mean(0) for name, each in gradients.items()}
    norm = jnp.sqrt(sum(jnp.vdot(each, each) for each in means.values()))
    rates = Rates(*numbers)
    scale = rates.scale(norm, jnp.minimum)
    found = {
        name: moved(optimizer, each, means[name] * scale, moments[name], rates)
        for name, each in weights.items()
    }
    return (
        {name: weight for name, (weight, _) in found.items()},
        {name: kept for name, (_, kept) in found.items()},
    )


def _mean(parts: Array) -> float:
    """Return the mean over this rank's devices."""
    return float(numpy.mean([numpy.asarray(each.data) for each in parts.addressable_shards]))
