"""A model whose layers are divided among ranks that pass activations on: pipeline parallelism.

torch's schedules run it (`torch.distributed.pipelining`); this module cuts the model into stages,
and gives each shape of batches a schedule of its own.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from torchloom.errors import UserError
from torchloom.specs.jobspec import Schedule
from torchloom.specs.mesh import CHUNKS

Loss = Callable[[Tensor, Tensor], Tensor]
_SINGLE = {Schedule.GPIPE: ScheduleGPipe, Schedule.ONE_F_ONE_B: Schedule1F1B}


class BadPipeline(UserError):
    """A model cannot be cut into the stages of a pipeline, or its batch not into microbatches."""

    code = "bad_pipeline"


def layers_in_order(model: nn.Module) -> list[list[str]]:
    """Return the names of the modules that run one after another, in groups that stay together.

    They are what the model's method `pipeline_plan` returns, else the members of a sequence.
    """
    own = getattr(model, "pipeline_plan", None)
    if callable(own):
        plan: list[list[str]] = own()
        return plan
    if not isinstance(model, nn.Sequential):
        raise BadPipeline(
            f"{type(model).__name__} has no plan for a pipeline: make it a torch.nn.Sequential, or"
            " give it a method pipeline_plan that returns the names of its modules in order"
        )
    groups: list[list[str]] = [[]]
    is_full = False
    for name, module in model.named_children():
        has_weights = any(True for _ in module.parameters())
        if is_full and has_weights:
            groups.append([])
        groups[-1].append(name)
        is_full = is_full or has_weights
    return groups


def stage_of(model: nn.Module, index: int, count: int) -> nn.Module:
    """Return one of `count` stages: a copy with only its own layers, under their own names."""
    groups = layers_in_order(model)
    if count > len(groups):
        raise BadPipeline(
            f"{len(groups)} layers cannot be cut into {count} stages: give the model more layers,"
            " or the mesh a smaller pp"
        )
    first, last = (len(groups) * at // count for at in (index, index + 1))
    others = groups[:first] + groups[last:]
    memo: dict[int, Any] = {  # what `deepcopy` puts in the place of modules of other stages
        id(model.get_submodule(name)): nn.Identity() for names in others for name in names
    }
    return copy.deepcopy(model, memo)


class Pipeline(nn.Module):
    """This rank's stages of a model; `step` trains all of them on a batch.

    `named_parameters` and `named_buffers` are those of this rank's stages.
    """

    def __init__(
        self, stages: Sequence[nn.Module], group: DeviceMesh, schedule: Schedule, microbatches: int
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.microbatches = microbatches
        self._schedule = schedule
        self._group = group.get_group()
        self._rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._last = dist.get_global_rank(self._group, self._size - 1)
        self._made: dict[tuple[Any, ...], Any] = {}
        self._loss: Loss | None = None

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, where outputs and losses are."""
        return self._rank == self._size - 1

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that have the stages of one copy of the model."""
        return self._group

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return this rank's parameters under their names in the whole model."""
        for stage in self.stages:
            yield from stage.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Return this rank's buffers under their names in the whole model."""
        for stage in self.stages:
            yield from stage.named_buffers(*args, **kwargs)

    def forward(self, *_: Any) -> Any:
        """Raise BadPipeline: one rank alone cannot run the model."""
        raise BadPipeline(
            "a pipeline has no forward pass of its own: call model.step(inputs, targets, loss)"
        )

    def step(self, inputs: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor | None]:
        """Run forward and backward on a batch; return its loss, and the last stage's outputs.

        A collective call: every rank passes the same batch and gets the loss. Gradients are the
        mean over the microbatches.
        """
        if len(inputs) % self.microbatches:
            raise BadPipeline(
                f"a batch of {len(inputs)} samples cannot be cut into {self.microbatches}"
                " microbatches: give a multiple, and drop the last batch that is not full"
            )
        self._loss = loss
        losses: list[Tensor] = []
        outputs = self._run("step", inputs, targets, losses)
        found = torch.stack(losses).mean() if self.is_last else torch.zeros(())
        return self.from_last(found.detach().to(inputs.device)), outputs

    def outputs(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs for a batch on the rank of the last stage. A collective call."""
        count = len(inputs)
        missing = -count % self.microbatches
        if missing:
            inputs = torch.cat([inputs, inputs[-1:].expand(missing, *inputs.shape[1:])])
        found = self._run("eval", inputs, None, None)
        return None if found is None else found[:count]

    def from_last(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the last stage's rank on every rank."""
        dist.broadcast(tensor, src=self._last, group=self._group)
        return tensor

    def all_from_last(self, tensor: Tensor | None, device: torch.device) -> Tensor | None:
        """Return the row of the last stage's rank on every rank; None if it has none."""
        size = torch.tensor(-1 if tensor is None else len(tensor), device=device)
        if int(self.from_last(size)) < 0:
            return None
        found = torch.empty(int(size), device=device, dtype=torch.bool)
        return self.from_last(found if tensor is None else tensor)

    def _run(
        self, method: str, inputs: Tensor, targets: Tensor | None, losses: list[Tensor] | None
    ) -> Tensor | None:
        schedule = self._made_for(tuple(inputs.shape), method)
        given = (inputs,) if self._rank == 0 else ()
        more = {"target": targets, "losses": losses} if self.is_last and targets is not None else {}
        found: Tensor | None = getattr(schedule, method)(*given, **more)
        return found

    def _made_for(self, shape: tuple[int, ...], method: str) -> Any:
        """Return the schedule for batches of this shape; torch infers what is sent by it."""
        if (shape, method) not in self._made:
            self._made[shape, method] = self._make(self._loss_of if method == "step" else None)
        return self._made[shape, method]

    def _make(self, loss: Loss | None) -> Any:
        count = len(self.stages) * self._size
        device = next(self.parameters()).device
        parts: list[Any] = [
            PipelineStage(stage, at * self._size + self._rank, count, device, group=self._group)
            for at, stage in enumerate(self.stages)
        ]
        if self._schedule is Schedule.INTERLEAVED:
            return ScheduleInterleaved1F1B(parts, self.microbatches, loss)
        return _SINGLE[self._schedule](parts[0], self.microbatches, loss)

    def _loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert self._loss is not None
        return self._loss(outputs, targets)


def cut(
    model: nn.Module, devices: DeviceMesh, schedule: Schedule
) -> tuple[list[nn.Module], DeviceMesh]:
    """Return this rank's stages, and the ranks that have the others."""
    ranks = devices["pp"]
    size, rank = ranks.size(), ranks.get_local_rank()
    chunks = CHUNKS if schedule is Schedule.INTERLEAVED else 1
    return [stage_of(model, at * size + rank, chunks * size) for at in range(chunks)], ranks
