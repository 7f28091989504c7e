"""The PyTorch adapter: DDP over the ranks, mixed precision, gradient accumulation."""

import contextlib
import io
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from torchloom.errors import UserError
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import Backend, JobSpec
from torchloom.specs.jobspec_shape import job_from_dict, job_to_dict
from torchloom.specs.mesh import data_share, is_sharded, mesh_of, servers_of, sizes_of
from torchloom.worker import dist as ranks
from torchloom.worker import environment
from torchloom.worker.dist import strategies
from torchloom.worker.dist.pipeline import Pipeline
from torchloom.worker.run.parts import is_divided
from torchloom.worker.run.wrap import Wrapped
from torchloom.worker.train.adapter import TrainingAdapter, WorkerPlan
from torchloom.worker.train.data import (
    Batch,
    Batches,
    DatasetPart,
    Pair,
    Samples,
    eval_batches,
    open_samples,
    split,
    train_batches,
)
from torchloom.worker.train.hyperparameters import Hyper, hyper_of
from torchloom.worker.train.models import make_model

if TYPE_CHECKING:
    from torchloom.worker.run.run import Run
    from torchloom.worker.train.data import Pair

RISE = 0.3  # of the steps of a cycle
START = 1 / 25  # of the peak
END = START / 1e4
_VIEW = "FSDP2-wrapped module .* returned a view"  # which this loop does not change in place
_TYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class DividedModel(UserError):
    """One rank alone cannot write down a model of which it has a part."""

    code = "divided_model"

    def __init__(self) -> None:
        super().__init__(
            "each rank holds a part of the model: save it by checkpoints of the run, and write it"
            " to one file by `loom checkpoint export`"
        )


def loss_of(module: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss: the model's own `loss(outputs, targets)`, else cross entropy."""
    own = getattr(module.stages[-1] if isinstance(module, Pipeline) else module, "loss", None)
    found: Tensor
    if callable(own):
        found = own(outputs, targets)
    else:
        found = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
    return found


def right_of(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return for each target whether it was predicted; None if targets are not classes."""
    if targets.is_floating_point() or outputs.shape[:-1] != targets.shape:
        return None
    return outputs.detach().argmax(-1).eq(targets).flatten()


def accuracy_of(rights: Iterable[Tensor | None]) -> dict[str, Tensor]:
    """Return the share of targets that were predicted, if targets are classes."""
    known = [each for each in rights if each is not None]
    return {"accuracy": torch.cat(known).float().mean()} if known else {}


@torch.no_grad()
def evaluate(
    state: "TorchState", batches: Iterable["Pair"], dist: "TorchContext"
) -> dict[str, float]:
    """Return loss and accuracy over the samples of all ranks. A collective call.

    A rank may have fewer batches than another, or none; what it computes instead does not count.
    """
    module = state.module.eval()
    if isinstance(state.model, Wrapped):
        for buffer in module.buffers():
            buffer.copy_(ranks.collectives().broadcast(buffer))  # as the next step would do
    sums = torch.zeros(4, dtype=torch.float64)  # loss, its weight, hits, targets that are classes
    for samples, targets, counts in _evenly(batches, is_sharded(state.spec.distributed.strategy)):
        wanted = targets.to(dist.device)
        with state.autocast(dist.device):
            outputs = _outputs(module, samples.to(dist.device))
            if outputs is None or not counts:
                continue
            loss = loss_of(module, outputs, wanted)
        right = right_of(outputs, wanted)
        hits = (0.0, 0) if right is None else (float(right.sum()), right.numel())
        sums += torch.tensor([float(loss) * len(targets), len(targets), *hits])
    module.train()
    loss_sum, weight, right_sum, count = ranks.all_reduce(sums).tolist()
    found = {"eval/loss": loss_sum / weight} if weight else {}
    return found | ({"eval/accuracy": right_sum / count} if count else {})


def _outputs(module: nn.Module, samples: Tensor) -> Tensor | None:
    """Return what a model answers; None on the ranks of a pipeline that have no last stage."""
    found: Tensor | None
    found = module.outputs(samples) if isinstance(module, Pipeline) else module(samples)
    return found


def _evenly(batches: Iterable["Pair"], is_divided: bool) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield batches, and whether they count: ranks that share a model all run it equally often."""
    last, held_out = None, cast(Any, batches)
    most = int(ranks.all_reduce(len(held_out), "max")) if is_divided else 0
    for last in batches:
        yield *last, True
    for _ in range(len(held_out) if is_divided else 0, most):
        yield *(last or held_out.dataset.one()), False


def factor(hyper: Hyper, step: int, steps: int) -> float:
    """Return the factor of the learning rate in step `step` of `steps`."""
    if hyper.schedule == "onecycle":
        return _one_cycle(step, steps)
    if step < hyper.warmup_steps:
        return (step + 1) / hyper.warmup_steps
    gone = step - hyper.warmup_steps
    done = min(1.0, gone / max(1, steps - hyper.warmup_steps))
    match hyper.schedule:
        case "linear":
            return 1.0 + (hyper.decay_to - 1.0) * done
        case "cosine":
            return _between(1.0, hyper.decay_to, done)
        case "step":
            return hyper.gamma ** (gone // hyper.step_size)
    return 1.0


def _one_cycle(step: int, steps: int) -> float:
    """Rise from a fraction of the peak, then fall to almost 0 at the last step."""
    top, last = RISE * steps - 1, steps - 1
    if step <= top:
        return _between(START, 1.0, step / top if top > 0 else 1.0)
    return _between(1.0, END, min(1.0, (step - top) / (last - top)) if last > top else 1.0)


def _between(start: float, end: float, done: float) -> float:
    """Return a point on half a cosine wave."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True)
class TorchContext:
    """The rank and its device."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class TorchState:
    """The state of a training between two steps; its tensors are changed in place."""

    spec: JobSpec
    hyper: Hyper
    model: nn.Module  # in DDP if there are other ranks, or divided among them
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    steps: int  # of the whole training, for schedules
    step: int = 0
    live: Mapping[str, Any] = field(default_factory=dict)  # current values of knobs
    used: dict[str, float] = field(default_factory=dict)  # the learning rate of the last step

    @property
    def module(self) -> nn.Module:
        """The model without DDP."""
        return self.model.module if isinstance(self.model, Wrapped) else self.model

    def autocast(self, device: torch.device) -> "torch.autocast":
        """Return the autocast context of the job's precision."""
        amp = self.hyper.amp
        return torch.autocast(device.type, _TYPES[amp], enabled=amp != "off")


class PyTorchAdapter(TrainingAdapter[nn.Module, Batch, TorchContext, TorchState]):
    """Data-parallel training with PyTorch."""

    def __init__(self) -> None:
        self._opened: tuple[JobSpec, Samples] | None = None
        self.takes_full_batches = False  # those that are not are left out

    def build_model(self, spec: JobSpec) -> nn.Module:
        """Return the model, with weights from the job's seed."""
        hyper, samples = hyper_of(spec), self._samples(spec)
        ranks.seed_everything(seed_of(spec))
        return make_model(spec, hyper, samples)

    def build_dataloader(self, spec: JobSpec, rank: int, world_size: int) -> Batches:
        """Return a rank's batches of the training part; a pipeline takes full ones only."""
        chosen = spec.distributed
        is_staged = is_sharded(chosen.strategy) and mesh_of(chosen, ranks.get_world_size()).pp > 1
        is_cut = is_staged or self.takes_full_batches
        part, hyper = self._parts(spec)[0], hyper_of(spec)
        return train_batches(part, hyper, rank, world_size, seed_of(spec), drop_last=is_cut)

    def init_distributed(self, plan: WorkerPlan) -> TorchContext:
        """Join the other ranks, on GPUs if the job has any, else on the CPU."""
        if not plan.gpus:
            cpu = environment.text("TORCH_DEVICE", "cpu")
            environment.export({"TORCH_DEVICE": cpu})  # for `get_torch_device` and loader workers
            torch.set_num_threads(min(plan.cpus, os.cpu_count() or 1))
        device = ranks.get_torch_device()
        _check_device(plan, device)
        rank = ranks.setup_torch(backend=None if plan.backend is Backend.AUTO else plan.backend)
        return TorchContext(rank, ranks.get_world_size(), ranks.get_torch_device())

    def build_evaluation(self, spec: JobSpec, rank: int, world_size: int) -> "DataLoader[Pair]":
        """Return a rank's batches of the held-out part."""
        return eval_batches(self._parts(spec)[1], hyper_of(spec), rank, world_size, seed_of(spec))

    def begin(
        self, spec: JobSpec, model: nn.Module, steps: int, live: Mapping[str, Any] | None = None
    ) -> TorchState:
        """Return a training before its first step. A collective call.

        A model that `run.wrap` returned is trained as it is; a replicated one is in the
        checkpoints of the run.
        """
        hyper, device = hyper_of(spec), ranks.get_torch_device()
        if hyper.amp == "fp16" and device.type == "cpu":
            raise SpecError("hyperparameters.amp", "fp16 needs a GPU: take bf16, or off")
        joined = model
        warnings.filterwarnings("ignore", _VIEW)
        if not isinstance(model, Wrapped) and not is_sharded(spec.distributed.strategy):
            joined = Wrapped(model.to(device), {}, sync=True)
        scaler = torch.amp.GradScaler(device.type, enabled=hyper.amp == "fp16")
        ranks.seed_everything(seed_of(spec) + 1 + share_of(spec)[0])  # for dropout
        optimizer, used = _optimizer(spec, hyper, joined), {"lr": hyper.lr}
        optimizer.register_step_pre_hook(lambda one, *_: _note_lr(one, used))
        return TorchState(spec, hyper, joined, optimizer, scaler, steps, 0, live or {}, used)

    def wrap(self, run: "Run", spec: JobSpec, model: nn.Module) -> nn.Module:
        """Return the model for training by the job's strategy. A collective call."""
        chosen = spec.distributed
        return run.wrap(
            model.to(ranks.get_torch_device()),
            strategy=chosen.strategy.value,
            mesh=None if chosen.mesh is None else sizes_of(chosen.mesh),
            sequence_parallel=chosen.sequence_parallel,
            schedule=chosen.schedule and chosen.schedule.value,
            microbatches=chosen.microbatches,
            compression=job_to_dict(spec)["compression"],
        )

    def track(self, run: "Run", state: TorchState) -> None:
        """Have checkpoints carry what trains the model."""
        run.track(optimizer=state.optimizer, scaler=state.scaler)

    def evaluate(
        self, state: TorchState, batches: Iterable["Pair"], dist: TorchContext
    ) -> dict[str, float]:
        """Return loss and accuracy over the samples of all ranks. A collective call."""
        return evaluate(state, batches, dist)

    def train_step(
        self, state: TorchState, batch: Batch, dist: TorchContext
    ) -> tuple[TorchState, dict[str, Any]]:
        """Run forward and backward over each pair of the batch; take one step with the mean."""
        _set_values(state)
        state.model.train()
        total = sum(len(targets) for _, targets in batch)
        losses: list[Tensor] = []
        rights: list[Tensor | None] = []
        for number, (samples, targets) in enumerate(batch, 1):
            pair = samples.to(dist.device), targets.to(dist.device)
            with _synced(state.model, number == len(batch)):
                loss, right = _passed(state, pair, len(targets) / total, dist)
            losses.append(loss.detach())
            rights.append(right)
        _apply(state)
        metrics = {"loss": sum(losses), **accuracy_of(rights), **state.used}
        every = state.spec.distributed.comm_timing
        if every and state.step % every == 0:
            metrics |= getattr(state.optimizer, "timed", {})
        return replace(state, step=state.step + 1), metrics

    def serialize_state(self, state: TorchState) -> bytes:
        """Return job, weights, optimizer and position; loading it runs no code."""
        if any(map(is_divided, state.module.parameters())) or isinstance(state.model, Pipeline):
            raise DividedModel()
        content = {
            "spec": job_to_dict(state.spec),
            "steps": state.steps,
            "step": state.step,
            "model": state.module.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scaler": state.scaler.state_dict(),
        }
        target = io.BytesIO()
        torch.save(content, target)
        return target.getvalue()

    def deserialize_state(self, blob: bytes | dict[str, Any]) -> TorchState:
        """Return the state. A collective call."""
        content: dict[str, Any] = blob if isinstance(blob, dict) else _loaded(blob)
        spec = job_from_dict(content["spec"])
        model = self.build_model(spec)
        model.load_state_dict(content["model"])
        state = self.begin(spec, model, content["steps"])
        state.optimizer.load_state_dict(content["optimizer"])
        state.scaler.load_state_dict(content["scaler"])
        return replace(state, step=content["step"])

    def end(self, state: TorchState) -> None:
        """End a training: parameter servers end with their last worker."""
        close = getattr(state.optimizer, "close", None)
        if close is not None:
            close()

    def _parts(self, spec: JobSpec) -> tuple[DatasetPart, DatasetPart]:
        """Return the training part and the held-out part."""
        return split(self._samples(spec), hyper_of(spec).eval_fraction, seed_of(spec))

    def _samples(self, spec: JobSpec) -> Samples:
        if self._opened is None or self._opened[0] != spec:
            ranks.seed_everything(seed_of(spec))  # random data is equal on every rank
            self._opened = spec, open_samples(spec, hyper_of(spec), seed_of(spec))
        return self._opened[1]


def _passed(
    state: TorchState, pair: Pair, weight: float, dist: TorchContext
) -> tuple[Tensor, Tensor | None]:
    """Run forward and backward over a pair; return its weighted loss, and what was predicted."""
    inputs, wanted = pair
    model = state.model
    if isinstance(model, Pipeline):
        with state.autocast(dist.device):
            loss, outputs = model.step(inputs, wanted, lambda *both: loss_of(model, *both) * weight)
        right = None if outputs is None else right_of(outputs, wanted)
        return loss, model.all_from_last(right, inputs.device)
    with state.autocast(dist.device):
        outputs = model(inputs)
        loss = loss_of(state.module, outputs, wanted) * weight
    torch.autograd.backward(state.scaler.scale(loss))
    return loss, right_of(outputs, wanted)


def _loaded(blob: bytes) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
    return content


def share_of(spec: JobSpec) -> tuple[int, int]:
    """Return which share of the samples this rank takes, and how many shares there are."""
    rank, world = ranks.get_rank(), ranks.get_world_size()
    if not is_sharded(spec.distributed.strategy):
        return rank, world
    return data_share(mesh_of(spec.distributed, world), rank)


def seed_of(spec: JobSpec) -> int:
    """Return the seed of a job; 0 by default."""
    return spec.seed or 0


def _optimizer(spec: JobSpec, hyper: Hyper, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a job; parameter servers have it, where the job has any."""
    local = make_optimizer(hyper, model)
    count = servers_of(spec.distributed, ranks.get_world_size())
    if not count:
        return local
    from torchloom.worker.servers.remote_optimizer import RemoteOptimizer

    names = ("lr", "momentum", "weight_decay")
    values = {name: local.defaults[name] for name in names if name in local.defaults}
    given = local.param_groups[0]["params"]
    return RemoteOptimizer(given, hyper.optimizer, values, count)


def make_optimizer(hyper: Hyper, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a job."""
    given = [each for each in model.parameters() if each.requires_grad]
    rate, decay = hyper.lr, hyper.weight_decay
    match hyper.optimizer:
        case "sgd":
            return torch.optim.SGD(given, rate, momentum=hyper.momentum, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(given, rate, weight_decay=decay)
    return torch.optim.Adam(given, rate, weight_decay=decay)


def _check_device(plan: WorkerPlan, device: torch.device) -> None:
    field = "resources.gpus_per_worker"
    if plan.gpus and device.type == "cpu":
        problem = f"is {plan.gpus}, and this worker sees no GPU"
        raise SpecError(field, f"{problem}: set it to 0, or check the driver")
    if plan.gpus > 1:
        problem = f"is {plan.gpus}, and a worker trains on one GPU"
        raise SpecError(field, f"{problem}: set it to 1 and take more workers")


def _synced(model: nn.Module, is_last: bool) -> contextlib.AbstractContextManager[None]:
    """Average gradients over the ranks only in the last pass of a step."""
    if isinstance(model, Wrapped):
        return contextlib.nullcontext() if is_last else model.no_sync()
    strategies.set_gradient_sync(model, is_last)
    return contextlib.nullcontext()


def _set_values(state: TorchState) -> None:
    """Set the optimizer's values for this step, from the schedule and the knobs."""
    hyper, live = state.hyper, state.live
    scale = factor(hyper, state.step, state.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = live.get("lr", hyper.lr) * scale
        for name in ("weight_decay", "momentum"):
            if name in live and name in group:
                group[name] = live[name]


def _note_lr(optimizer: torch.optim.Optimizer, used: dict[str, float]) -> None:
    """Record the learning rate inside a step, where changes of the knob are visible."""
    used["lr"] = float(optimizer.param_groups[0]["lr"])


def _clip(model: nn.Module, limit: float) -> None:
    """Limit the norm of the gradients of the whole model."""
    if isinstance(model, Wrapped):
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    else:
        group = model.group if isinstance(model, Pipeline) else None
        strategies.clip_gradients(model.parameters(), limit, group)


def _apply(state: TorchState) -> None:
    """Clip the gradients, step, and zero them."""
    clip = state.live.get("clip", state.hyper.clip)
    if clip:
        state.scaler.unscale_(state.optimizer)
        _clip(state.model, clip)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
