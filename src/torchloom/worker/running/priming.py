"""Bring DDP's buckets into their steady layout before a step counts.

DDP lays its buckets out anew after the first pass: from three ranks on that pass adds gradients up
in another order, with other bits. A run that goes on in a new process would have such a pass where
an undisturbed one has none, so both take it beforehand, twice, and throw it away.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from torchloom.worker.running.nested import replaced, tensors
from torchloom.worker.running.seeding import Chance

PASSES = 2


def prime(model: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Go forth and back with these inputs, and leave no trace but the layout of the buckets."""
    chance = Chance()
    buffers = [(each, each.detach().clone()) for each in model.module.buffers()]
    gradients = [(each, each.grad) for each in model.module.parameters()]
    synced, model.require_backward_grad_sync = model.require_backward_grad_sync, True
    shares = model.require_forward_param_sync
    try:
        for _ in range(PASSES):
            _forget(model)
            _pass(model, args, kwargs)
    finally:
        model.require_backward_grad_sync = synced
        model.require_forward_param_sync = shares
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        chance.put_back()


def _pass(model: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take copies of the inputs: whatever made them has a graph of its own, still to be used."""
    outputs = model(*replaced(args, _copy), **replaced(kwargs, _copy))
    sums = [each.sum() for each in tensors(outputs) if each.requires_grad]
    if sums:
        torch.autograd.backward(sums)
    torch.clear_autocast_cache()  # the weights cast in this pass belong to its graph


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _forget(model: DistributedDataParallel) -> None:
    for parameter in model.module.parameters():
        parameter.grad = None
