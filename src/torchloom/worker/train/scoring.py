"""What a model's answers are worth: loss and accuracy, of a batch or of all that is held out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchloom.worker import dist as ranks

if TYPE_CHECKING:
    from torchloom.worker.train.data import Pair
    from torchloom.worker.train.pytorch import TorchContext, TorchState


def loss_of(module: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss: the model's own `loss(outputs, targets)`, else the cross entropy."""
    own = getattr(module, "loss", None)
    found: Tensor
    if callable(own):
        found = own(outputs, targets)
    else:
        found = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
    return found


def right_of(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return for each target whether it was told; nothing where targets are no classes."""
    if targets.is_floating_point() or outputs.shape[:-1] != targets.shape:
        return None
    return outputs.detach().argmax(-1).eq(targets).flatten()


def accuracy_of(rights: Iterable[Tensor | None]) -> dict[str, Tensor]:
    """Return the share of targets that were told, where that can be said."""
    known = [each for each in rights if each is not None]
    return {"accuracy": torch.cat(known).float().mean()} if known else {}


@torch.no_grad()
def evaluate(
    state: "TorchState", batches: Iterable["Pair"], dist: "TorchContext"
) -> dict[str, float]:
    """Return loss and accuracy over all ranks' samples, each of them counted once.

    Every rank comes here; one may have fewer batches than another, or none.
    """
    module = state.module.eval()
    for buffer in module.buffers():
        buffer.copy_(ranks.collectives().broadcast(buffer))  # as the next step would have it
    sums = torch.zeros(4, dtype=torch.float64)  # loss, its weight, hits, targets that are classes
    for samples, targets in batches:
        with state.autocast(dist.device):
            outputs = module(samples.to(dist.device))
            wanted = targets.to(dist.device)
            loss = loss_of(module, outputs, wanted)
        right = right_of(outputs, wanted)
        hits = (0.0, 0) if right is None else (float(right.sum()), right.numel())
        sums += torch.tensor([float(loss) * len(targets), len(targets), *hits])
    module.train()
    loss_sum, weight, right_sum, count = ranks.all_reduce(sums).tolist()
    found = {"eval/loss": loss_sum / weight} if weight else {}
    return found | ({"eval/accuracy": right_sum / count} if count else {})
