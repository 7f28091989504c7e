"""A small training on synthetic data that shows whether the ranks train together."""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchloom.launch.host.identity import host_name
from torchloom.worker import dist

BATCH = 128  # samples a rank
RATE = 0.005
CLASSES = 8


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank at the end of the training."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    device: str
    digest: str  # of its parameters


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """The result of a run; `losses` are means over all ranks, before and after training."""

    model: str
    steps: int
    world_size: int
    backend: str
    losses: tuple[float, float]
    seconds: float
    samples_per_second: float
    ranks: tuple[RankRow, ...]

    @property
    def error(self) -> str:
        """What is wrong, in a sentence; empty if the ranks agree and the loss fell."""
        first = self.ranks[0].digest
        others = [str(row.rank) for row in self.ranks if row.digest != first]
        if others:
            who = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(others)} have"
            return (
                f"{who} other parameters than rank 0 after {self.steps} steps: gradients were not "
                f"averaged over the ranks; check backend {self.backend} and the network between"
            )
        before, after = self.losses
        if not after < before:  # also if it is NaN
            return (
                f"the loss did not fall: {before:.4f} before, {after:.4f} after {self.steps} steps "
                f"of {self.model}; give it more --steps, or check the device {self.ranks[0].device}"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `--json` shows it."""
        fields = asdict(self)
        losses = [loss if math.isfinite(loss) else None for loss in fields.pop("losses")]
        shown = {"ok": not self.error, "error": self.error or None}
        return {**shown, **fields, "loss_before": losses[0], "loss_after": losses[1]}


Data = tuple[Tensor, Tensor]
Make = Callable[[torch.Generator], tuple[nn.Module, Data]]


def train(
    name: str, steps: int, wrap: Callable[[nn.Module], nn.Module] | None = None
) -> WorkloadReport:
    """Train one of the models on all ranks of the group; `wrap` replaces DDP."""
    device = dist.get_torch_device()
    dist.seed_everything(0)
    model, data = MODELS[name](torch.Generator().manual_seed(1 + dist.get_rank()))
    model = (wrap or _replicated)(model.to(device))
    inputs, targets = data[0].to(device), data[1].to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    before = _loss(model, inputs, targets)
    with dist.Timer() as timer:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            torch.autograd.backward(loss)
            optimizer.step()
    losses = before, _loss(model, inputs, targets)
    return _report(name, steps, losses, timer.seconds, _row(model, device))


def _replicated(model: nn.Module) -> nn.Module:
    return dist.wrap_model(model, use_fsdp=False)


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return the loss on all ranks' data."""
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(inputs), targets)
    return float(dist.all_reduce(loss.double().cpu(), "mean"))


def _row(model: nn.Module, device: torch.device) -> RankRow:
    return RankRow(
        dist.get_rank(),
        dist.get_local_rank(),
        dist.get_node_index(),
        host_name(),
        os.getpid(),
        str(device),
        digest(model),
    )


def digest(model: nn.Module) -> str:
    """Return a fingerprint of the parameters' bits."""
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()[:16]


def _report(
    name: str, steps: int, losses: tuple[float, float], seconds: float, row: RankRow
) -> WorkloadReport:
    size = dist.get_world_size()
    rate = size * BATCH * steps / seconds if seconds else 0.0
    return WorkloadReport(name, steps, size, _backend(), losses, seconds, rate, _everyone(row))


def _everyone(row: RankRow) -> tuple[RankRow, ...]:
    if not torch.distributed.is_initialized():
        return (row,)
    rows: list[Any] = [None] * dist.get_world_size()
    torch.distributed.all_gather_object(rows, row)
    return tuple(rows)


def _backend() -> str:
    group = torch.distributed
    return str(group.get_backend()) if group.is_initialized() else "none"


def _mlp(generator: torch.Generator) -> tuple[nn.Module, Data]:
    """Classify vectors by their largest component."""
    inputs = torch.randn(BATCH, 32, generator=generator)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)]
    return nn.Sequential(*layers), (inputs, inputs[:, :CLASSES].argmax(1))


def _cnn(generator: torch.Generator) -> tuple[nn.Module, Data]:
    """Find the bright row of a noisy picture."""
    targets = torch.randint(CLASSES, (BATCH,), generator=generator)
    inputs = 0.3 * torch.randn(BATCH, 1, CLASSES, 8, generator=generator)
    inputs[torch.arange(BATCH), 0, targets] += 1
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, CLASSES)]
    return nn.Sequential(*layers), (inputs, targets)


def _transformer(generator: torch.Generator) -> tuple[nn.Module, Data]:
    """Find the most frequent token of a sequence."""
    tokens = torch.randint(CLASSES, (BATCH, 16), generator=generator)
    targets = nn.functional.one_hot(tokens, CLASSES).sum(1).argmax(1)
    blocks = [
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    head = [nn.Flatten(), nn.Linear(16 * 32, CLASSES)]
    return nn.Sequential(nn.Embedding(CLASSES, 32), *blocks, *head), (tokens, targets)


MODELS: dict[str, Make] = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
