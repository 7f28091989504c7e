"""Data-parallel training in a framework other than torch: all but its arrays and collectives.

Data sets, the order of the samples, initial weights and their names are those of the PyTorch
adapter, so the same job gives the same losses in each framework, but for rounding. The ranks also
meet in a gloo group of torch: they agree on checkpoints and evaluations there.
"""

import io
import ipaddress
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy
import torch
from torch import Tensor

from torchloom.launch.host.sockets import free_port
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.jobspec_shape import job_from_dict, job_to_dict
from torchloom.worker import dist as ranks
from torchloom.worker import environment
from torchloom.worker.run import agreement
from torchloom.worker.run.tracked_state import ForeignModel
from torchloom.worker.train.adapter import TrainingAdapter, WorkerPlan
from torchloom.worker.train.data import Batch, Batches, Pair
from torchloom.worker.train.hyperparameters import Hyper, hyper_of
from torchloom.worker.train.pytorch import PyTorchAdapter, factor

if TYPE_CHECKING:
    from torchloom.worker.run.run import Run

Array = Any  # of the framework
Arrays = dict[str, Array]  # by the name of the weight
Moments = dict[str, Arrays]  # what the optimizer keeps of each weight
HostArrays = dict[str, "numpy.ndarray[Any, Any]"]
BETAS = (0.9, 0.999)
EPSILON = 1e-8
_MOMENTS = {"sgd": ("momentum_buffer",)}
_ADAM = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Rates:
    """The numbers of one step of an optimizer; they may be arrays of the framework."""

    lr: Any
    weight_decay: Any
    momentum: Any
    clip: Any  # infinite: the gradient has no limit
    step: Any  # from 1

    def scale(self, norm: Any, minimum: Any) -> Any:
        """Return the factor of gradients of this norm."""
        return minimum(1.0, self.clip / (norm + 1e-6))


def moved(
    optimizer: str, weight: Array, gradient: Array, moments: Arrays, rates: Rates
) -> tuple[Array, Arrays]:
    """Return a weight after a step, and what is kept of it; the arithmetic is torch's."""
    if optimizer == "sgd":
        gradient = gradient + rates.weight_decay * weight
        kept = rates.momentum * moments["momentum_buffer"] + gradient
        return weight - rates.lr * kept, {"momentum_buffer": kept}
    if optimizer == "adamw":
        weight = weight * (1.0 - rates.lr * rates.weight_decay)
    else:
        gradient = gradient + rates.weight_decay * weight
    first, second = BETAS
    mean = first * moments["exp_avg"] + (1.0 - first) * gradient
    square = second * moments["exp_avg_sq"] + (1.0 - second) * gradient * gradient
    spread = (square / (1.0 - second**rates.step)) ** 0.5 + EPSILON
    moved_by = rates.lr * (mean / (1.0 - first**rates.step)) / spread
    return weight - moved_by, {"exp_avg": mean, "exp_avg_sq": square}


@dataclass(frozen=True, slots=True)
class ForeignPair:
    """Samples and targets of one pass of this rank, and their weight in the step."""

    samples: "numpy.ndarray[Any, Any]"
    targets: "numpy.ndarray[Any, Any]"
    weight: float = 1.0


class Engine(Protocol):
    """The computations of a framework. Its arrays are not changed in place."""

    name: str
    version: str
    devices: int  # that this rank computes on; they share its samples

    def put(self, array: "numpy.ndarray[Any, Any]") -> Array:
        """Return an array that is equal on every rank."""

    def get(self, array: Array) -> "numpy.ndarray[Any, Any]":
        """Return a copy of such an array."""

    def gradients(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pairs: list[ForeignPair], step: int
    ) -> tuple[Any, float, float]:
        """Return the gradients of this rank, its loss, and its share of right predictions."""

    def move(
        self, hyper: Hyper, weights: Arrays, gradients: Any, moments: Moments, rates: Rates
    ) -> tuple[Arrays, Moments]:
        """Return weights and moments after a step with the mean over all ranks' gradients."""

    def score(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pair: ForeignPair
    ) -> tuple[float, float, int]:
        """Return mean loss, right predictions and predictions of a batch; no collective call."""


@dataclass(frozen=True, slots=True)
class ForeignContext:
    """The rank and the framework's computations."""

    rank: int
    world_size: int
    engine: Engine


class ForeignWeights(ForeignModel):
    """Weights and the optimizer's moments, in arrays of the framework."""

    def __init__(self, engine: Engine, weights: Arrays, moments: Moments) -> None:
        self.engine = engine
        self.version = engine.name, engine.version
        self.arrays = weights
        self.moments = moments

    @classmethod
    def of(cls, engine: Engine, hyper: Hyper, model: HostArrays) -> "ForeignWeights":
        """Return these weights, before the first step of an optimizer."""
        kept = _MOMENTS.get(hyper.optimizer, _ADAM)
        weights = {name: engine.put(each) for name, each in model.items()}
        zeros = {name: numpy.zeros_like(each) for name, each in model.items()}
        moments = {name: {key: engine.put(zeros[name]) for key in kept} for name in zeros}
        return cls(engine, weights, moments)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return {name: self._tensor(each) for name, each in self.arrays.items()}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the moments by weight and name."""
        return {
            name: {key: self._tensor(each) for key, each in kept.items()}
            for name, kept in self.moments.items()
        }

    def load(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Continue with these weights and moments."""
        put = self.engine.put
        self.arrays = {name: put(weights[name].numpy()) for name in self.arrays}
        self.moments = {
            name: {key: put(state[name][key].numpy()) for key in kept}
            for name, kept in self.moments.items()
        }

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(self.engine.get(array))


@dataclass(frozen=True, slots=True)
class ForeignState:
    """The state of a training between two steps; its model takes other arrays in each step."""

    spec: JobSpec
    hyper: Hyper
    model: ForeignWeights
    steps: int  # of the whole training, for schedules
    step: int = 0
    live: Mapping[str, Any] = field(default_factory=dict)  # current values of knobs

    def rates(self) -> Rates:
        """Return the numbers of this step, from the schedule and the knobs."""
        hyper, live = self.hyper, self.live
        momentum = live.get("momentum", hyper.momentum) if hyper.optimizer == "sgd" else 0.0
        return Rates(
            live.get("lr", hyper.lr) * factor(hyper, self.step, self.steps),
            live.get("weight_decay", hyper.weight_decay),
            momentum,
            live.get("clip", hyper.clip) or float("inf"),
            float(self.step + 1),
        )


class ForeignAdapter(TrainingAdapter[HostArrays, Batch, ForeignContext, ForeignState]):
    """Data-parallel training by an engine, of which a subclass makes the one of its framework."""

    def __init__(self) -> None:
        self._torch = PyTorchAdapter()  # for data and initial weights
        self._engine: Engine | None = None

    def start(self, plan: WorkerPlan, rank: int, world_size: int) -> Engine:
        """Join the other ranks in the framework's own way; torch's group is there already."""
        raise NotImplementedError

    @property
    def engine(self) -> Engine:
        """The engine; a rank that has not joined others is alone."""
        if self._engine is None:
            self._engine = self.start(WorkerPlan(), 0, 1)
        return self._engine

    def build_model(self, spec: JobSpec) -> HostArrays:
        """Return the weights of the job's model, as torch draws them from its seed."""
        model = self._torch.build_model(spec)
        found = sorted(
            model.named_parameters(), key=lambda each: each[0]
        )  # as compiled code has it
        return {name: each.detach().numpy().copy() for name, each in found}

    def build_dataloader(self, spec: JobSpec, rank: int, world_size: int) -> Batches:
        """Return a rank's batches; several devices of a rank take full ones only."""
        self._torch.takes_full_batches = self.engine.devices > 1
        return self._torch.build_dataloader(spec, rank, world_size)

    def init_distributed(self, plan: WorkerPlan) -> ForeignContext:
        """Join the other ranks in torch's group, then in the framework's own way."""
        environment.export({"TORCH_DEVICE": "cpu"})
        torch.set_num_threads(min(plan.cpus, os.cpu_count() or 1))
        rank = ranks.setup_torch(backend="gloo")
        self._engine = self.start(plan, rank, ranks.get_world_size())
        return ForeignContext(rank, ranks.get_world_size(), self._engine)

    def wrap(self, run: "Run", spec: JobSpec, model: HostArrays) -> HostArrays:
        """Return the weights as they are: every rank has them whole."""
        return model

    def build_evaluation(self, spec: JobSpec, rank: int, world_size: int) -> Iterable[Pair]:
        """Return a rank's batches of the held-out part."""
        return self._torch.build_evaluation(spec, rank, world_size)

    def begin(
        self,
        spec: JobSpec,
        model: HostArrays,
        steps: int,
        live: Mapping[str, Any] | None = None,
    ) -> ForeignState:
        """Return a training before its first step."""
        hyper = hyper_of(spec)
        weights = ForeignWeights.of(self.engine, hyper, model)
        return ForeignState(spec, hyper, weights, steps, 0, live or {})

    def track(self, run: "Run", state: ForeignState) -> None:
        """Have checkpoints carry the weights and moments."""
        run.track(model=state.model)

    def train_step(
        self, state: ForeignState, batch: Batch, dist: ForeignContext
    ) -> tuple[ForeignState, dict[str, Any]]:
        """Run forward and backward over each pair of the batch; take one step with the mean."""
        spec, hyper, model = state.spec, state.hyper, state.model
        rates, total = state.rates(), sum(len(targets) for _, targets in batch)
        pairs = [_host(pair, len(pair[1]) / total) for pair in batch]
        found = model.engine.gradients(spec, hyper, model.arrays, pairs, state.step)
        gradients, loss, right = found
        model.arrays, model.moments = model.engine.move(
            hyper, model.arrays, gradients, model.moments, rates
        )
        metrics = {"loss": loss, "accuracy": right, "lr": float(rates.lr)}
        return replace(state, step=state.step + 1), metrics

    def evaluate(
        self, state: ForeignState, batches: Iterable[Pair], dist: ForeignContext
    ) -> dict[str, float]:
        """Return loss and accuracy over the samples of all ranks. A collective call."""
        sums = torch.zeros(4, dtype=torch.float64)  # loss, its weight, hits, predictions
        model = state.model
        for each in batches:
            pair = _host(each, 1.0)
            loss, hits, count = model.engine.score(state.spec, state.hyper, model.arrays, pair)
            sums += torch.tensor([loss * len(pair.targets), len(pair.targets), hits, count])
        loss_sum, weight, right_sum, count = ranks.all_reduce(sums).tolist()
        if not weight:
            return {}
        return {"eval/loss": loss_sum / weight, "eval/accuracy": right_sum / count}

    def serialize_state(self, state: ForeignState) -> bytes:
        """Return job, weights, moments and position; loading it runs no code."""
        content = {
            "spec": job_to_dict(state.spec),
            "steps": state.steps,
            "step": state.step,
            "model": state.model.weights(),
            "optimizer": state.model.state(),
        }
        target = io.BytesIO()
        torch.save(content, target)
        return target.getvalue()

    def deserialize_state(self, blob: bytes | dict[str, Any]) -> ForeignState:
        """Return the state."""
        found: Any = blob
        if isinstance(blob, bytes):
            found = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
        content = cast(dict[str, Any], found)
        spec = job_from_dict(content["spec"])
        state = self.begin(spec, self.build_model(spec), content["steps"])
        state.model.load(content["model"], content["optimizer"])
        return replace(state, step=content["step"])


def _host(pair: Pair, weight: float) -> ForeignPair:
    samples, targets = pair
    return ForeignPair(samples.numpy(), targets.numpy(), weight)


def addresses_of(rank: int, world_size: int) -> list[str]:
    """Return a free port on each rank's host, at the address its peers know. A collective call."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((environment.text("MASTER_ADDR", "127.0.0.1"), 1))  # sends nothing
        own = probe.getsockname()[0]
    number = int(ipaddress.IPv4Address(own)) << 16 | free_port()
    found = agreement.gather(number)
    return [f"{ipaddress.IPv4Address(each >> 16)}:{each & 0xFFFF}" for each in found]


def tensorflow_cluster(addresses: list[str], rank: int) -> dict[str, str]:
    """Return the variable by which TensorFlow finds the workers of a cluster."""
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
