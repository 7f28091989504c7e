"""Models whose parameters are divided among the ranks: FSDP2, HSDP, tensor parallelism, and both.

torch's own engines do the work (`fully_shard`, `parallelize_module`); this module chooses the mesh,
the plan and the parts that they get.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from torchloom.errors import UserError, shorten
from torchloom.specs.jobspec import Distributed, Mesh
from torchloom.specs.mesh import (
    DATA,
    data_share,
    is_sharded,
    mesh_of,
    microbatches_of,
    schedule_of,
    sizes_of,
)
from torchloom.worker.dist import pipeline
from torchloom.worker.dist.device import get_torch_device_type
from torchloom.worker.dist.parallelism import layers_of

Plan = Mapping[str, str | ParallelStyle]
SEQUENCE = 1  # the dimension of activations that a sequence is in: (batch, sequence, features)


class BadTensorPlan(UserError):
    """A model cannot be divided as its plan says, or it has no plan."""

    code = "bad_tensor_plan"


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How the ranks of this run are arranged, and the groups that torch has made for it."""

    distributed: Distributed
    mesh: Mesh
    rank: int
    devices: DeviceMesh | None  # None for a single process, and where every rank has all

    @property
    def share(self) -> tuple[int, int]:
        """Which share of the samples this rank takes, and how many shares there are."""
        return data_share(self.mesh, self.rank)

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds only a part of the model."""
        return self.devices is not None


def lay_out(distributed: Distributed, rank: int, world: int) -> ParallelLayout:
    """Return the layout of all ranks. A collective call; SpecError if they do not fit."""
    mesh = mesh_of(distributed, world)
    if world == 1 or not is_sharded(distributed.strategy):
        return ParallelLayout(distributed, mesh, rank, None)
    sizes = {name: size for name, size in sizes_of(mesh).items() if size > 1}
    if "dp_replicate" in sizes:  # `fully_shard` replicates over a mesh with two dimensions
        sizes = {name: size for name, size in sizes_of(mesh).items() if name in {*sizes, *DATA}}
    devices = init_device_mesh(
        get_torch_device_type(), tuple(sizes.values()), mesh_dim_names=tuple(sizes)
    )
    return ParallelLayout(distributed, mesh, rank, devices)


def parallelize(
    model: nn.Module, layout: ParallelLayout, plan: Plan | None = None, **options: Any
) -> nn.Module:
    """Divide a model in place among the ranks of a layout; every rank gets rank 0's weights.

    Args:
        model: The module, on its device; create the optimizer afterwards.
        layout: What `lay_out` returned.
        plan: The tensor-parallel style of modules by name; without it the model's own plan.
        **options: Arguments of torch's `fully_shard`.

    Raises:
        BadTensorPlan: The model has no plan, or its plan does not fit.
    """
    devices = layout.devices
    if devices is None:
        return model
    _send_weights(model)
    if layout.mesh.pp == 1:
        return _divided(model, layout, devices, plan, options)
    chosen = layout.distributed
    schedule, parts = schedule_of(chosen), microbatches_of(chosen, layout.mesh)
    stages, group = pipeline.cut(model, devices, schedule)
    divided = [_divided(stage, layout, devices, plan, options) for stage in stages]
    return pipeline.Pipeline(divided, group, schedule, parts)


def _divided(
    model: nn.Module,
    layout: ParallelLayout,
    devices: DeviceMesh,
    plan: Plan | None,
    options: Mapping[str, Any],
) -> nn.Module:
    """Divide the layers of a model, or of one stage of it."""
    dimensions = devices.mesh_dim_names or ()
    steps: Mapping[str, ParallelStyle] = {}
    if "tp" in dimensions:
        steps = tensor_plan(model, plan, layout.mesh.tp, layout.distributed.sequence_parallel)
    elif plan is not None:
        raise BadTensorPlan("a plan is for tensor parallelism, and the mesh has no tp: leave it out")
    if steps:
        parallelize_module(model, devices["tp"], dict(steps), src_data_rank=None)
    if data := tuple(name for name in dimensions if name in DATA):
        mesh = devices[data] if len(data) > 1 else devices[data[0]]
        for part in (*layers_of(model), model):
            fully_shard(part, mesh=mesh, **options)
    return model


def _send_weights(model: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, as DDP does."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)


# Plans of tensor parallelism.


def tensor_plan(
    model: nn.Module, plan: Plan | None, size: int, is_sequential: bool
) -> dict[str, ParallelStyle]:
    """Return torch's style of each module that is divided; BadTensorPlan if the model does not fit.

    Without a plan the model's own is taken: of its method `tensor_plan`, else the `_tp_plan` that
    `transformers` makes of a config. A name may have `*` for one part.
    """
    found = _own_plan(model, is_sequential) if plan is None else plan
    styles = {name: _style(name, style) for name, style in found.items()}
    modules = dict(model.named_modules())
    styles = {name: style for name, style in styles.items() if not _is_elsewhere(modules, name)}
    taken: dict[str, str] = {}
    for name in styles:
        fitting = [each for each in modules if _is_meant(name, each)]
        if not fitting:
            raise BadTensorPlan(f"the plan names {shorten(name)}, and the model has no such module")
        for each in fitting:
            _check_division(each, modules[each], styles[name], size)
            taken[each] = name
    _check_ties(model, taken)
    _check_heads(model, size)
    return styles


def _is_elsewhere(modules: Mapping[str, nn.Module], name: str) -> bool:
    """Tell whether another stage of a pipeline has a module, or all that a name with `*` means."""
    parts = name.split(".")
    starts = (".".join(parts[:at]) for at in range(1, len(parts) + 1))
    for start in starts:
        meant = [module for each, module in modules.items() if _is_meant(start, each)]
        if meant and all(isinstance(module, nn.Identity) for module in meant):
            return True
    return False


def _own_plan(model: nn.Module, is_sequential: bool) -> Plan:
    own = getattr(model, "tensor_plan", None)
    found: Plan | None
    if callable(own):
        found = own(is_sequential)
    else:
        found = None if is_sequential else getattr(model, "_tp_plan", None)
    if not found:
        what = "sequence parallelism" if is_sequential else "tensor parallelism"
        raise BadTensorPlan(
            f"{type(model).__name__} has no plan for {what}: give run.wrap"
            ' plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        )
    return found


_STYLES: Mapping[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "sequence": SequenceParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    # Between the layers of sequence parallelism, where each rank has a part of the sequence.
    "colwise_of_sequence": lambda: ColwiseParallel(input_layouts=Shard(SEQUENCE)),
    "rowwise_to_sequence": lambda: RowwiseParallel(output_layouts=Shard(SEQUENCE)),
    "shared_input": lambda: _input(Replicate(), is_local=False),
    "whole_input": lambda: _input(Shard(SEQUENCE), is_local=False),
    "gathered_input": lambda: _input(Shard(SEQUENCE), is_local=True),
    "split_output": lambda: PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Shard(SEQUENCE)
    ),
}
STYLES = ("colwise", "rowwise", "sequence", "colwise_gather_output", "rowwise_split_input")
_OTHER_NAMES = {
    "colwise_rep": "colwise_gather_output",
    "rowwise_rep": "rowwise_split_input",
    "sequence_parallel": "sequence",
}


def _input(layout: Replicate | Shard, is_local: bool) -> PrepareModuleInput:
    """Return the style that gives a module whole activations, of those in this layout.

    Its gradients are reduced once, whatever number of layers inside it takes the input.
    """
    return PrepareModuleInput(
        input_layouts=(layout,), desired_input_layouts=(Replicate(),), use_local_output=is_local
    )


def _style(name: str, style: str | ParallelStyle) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    made = _STYLES.get(_OTHER_NAMES.get(style, style))
    if made is None:
        known = ", ".join(STYLES)
        raise BadTensorPlan(
            f"{shorten(name)}: no style {shorten(str(style))!r}; take one of {known},"
            " or a ParallelStyle of torch"
        )
    found: ParallelStyle = made()
    return found


def _is_meant(pattern: str, name: str) -> bool:
    """Tell whether a name of a plan means a module, as `parallelize_module` reads it."""
    want, parts = pattern.split("."), name.split(".")
    return len(want) == len(parts) and all(
        word in ("*", part) for word, part in zip(want, parts, strict=True)
    )


def _check_division(name: str, module: nn.Module, style: ParallelStyle, size: int) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return
    is_embedding = isinstance(module, nn.Embedding)
    if isinstance(style, ColwiseParallel):
        dimension = 1 if is_embedding else 0
    elif isinstance(style, RowwiseParallel):
        dimension = 0 if is_embedding else 1
    else:
        return
    if weight.shape[dimension] % size:
        raise BadTensorPlan(
            f"{name} has a weight of {tuple(weight.shape)}: {weight.shape[dimension]} cannot be"
            f" divided among tp {size}; change the size of the layer, or tp"
        )


def _check_ties(model: nn.Module, taken: Mapping[str, str]) -> None:
    """Refuse to divide a parameter that two modules share: each would get a copy of its own."""
    owners: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)].append(name.rpartition(".")[0])
    for names in owners.values():
        if len(names) > 1 and any(name in taken for name in names):
            raise BadTensorPlan(
                f"{' and '.join(names)} share a weight, which a plan cannot divide: untie them"
                " (tie_word_embeddings=False), or leave them out of the plan"
            )


def _check_heads(model: nn.Module, size: int) -> None:
    """Refuse attention heads of a config that ranks cannot share evenly."""
    config = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % size:
            raise BadTensorPlan(f"{name} is {heads}, which tp {size} cannot share: take a divisor as tp")


# What a training loop needs besides.


def set_gradient_sync(model: nn.Module, is_on: bool) -> None:
    """Average gradients over the ranks in the next backward pass, or only add them up."""
    switch = getattr(model, "set_requires_gradient_sync", None)
    if switch is not None:  # of FSDP; tensor parallelism has nothing to average
        switch(is_on)


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most `limit`; return the norm.

    torch's own function takes no parameters of different meshes, as tensor parallelism has them.
    `group` are the ranks of a pipeline, each with parameters of its own.
    """
    alike: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            alike[_spread(parameter.grad)].append(parameter)
    squares = [_square(each) for each in alike.values()]
    square = torch.stack(squares).sum() if squares else torch.tensor(0.0)
    if group is not None:
        dist.all_reduce(square, group=group)
    total = square.sqrt()
    for each in alike.values():
        nn.utils.clip_grads_with_norm_(each, limit, total, foreach=False)
    return total


def _spread(grad: Tensor) -> Any:
    """Return what gradients whose norms are added up have in common."""
    if not isinstance(grad, DTensor):
        return None
    return grad.device_mesh, tuple(_is_divided(each) for each in grad.placements)


def _is_divided(placement: Placement) -> bool:
    """Tell whether each rank has another part; in two dimensions there are several kinds of it."""
    return not placement.is_replicate() and not placement.is_partial()


def _square(parameters: list[nn.Parameter]) -> Tensor:
    """Return the sum of the squared gradients, whose parts are on the ranks of one mesh."""
    grads = [_reduced(each.grad) for each in parameters if each.grad is not None]
    local = [each.to_local() if isinstance(each, DTensor) else each for each in grads]
    found = torch.stack([part.square().sum() for part in local]).sum()
    first = grads[0]
    if isinstance(first, DTensor):
        for dimension, placement in enumerate(first.placements):
            if _is_divided(placement):
                dist.all_reduce(found, group=first.device_mesh.get_group(dimension))
    return found


def _reduced(grad: Tensor) -> Tensor:
    """Return a gradient of which no rank has only a summand."""
    if not isinstance(grad, DTensor) or not any(each.is_partial() for each in grad.placements):
        return grad
    whole = [Replicate() if each.is_partial() else each for each in grad.placements]
    return grad.redistribute(placements=whole)
