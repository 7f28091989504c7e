"""The models of the ready-made training, by name."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.train.data import Samples
from torchloom.worker.train.hyperparameters import MODULE, Hyper, check_fit, own_function

Make = Callable[[Hyper, Samples], nn.Module]


def make_model(spec: JobSpec, hyper: Hyper, samples: Samples) -> nn.Module:
    """Return a job's model, with weights from torch's default generator."""
    if spec.model.startswith(MODULE):
        return _own(spec.model, spec.hyperparameters)
    check_fit(spec, samples.kind)
    if not samples.classes:
        problem = f"{spec.dataset} does not say how many classes it has"
        raise SpecError("dataset", f"{problem}: give it an attribute `classes`")
    return MAKERS[spec.model](hyper, samples)


def _own(name: str, hyperparameters: Mapping[str, Any]) -> nn.Module:
    model = own_function("model", name)(dict(hyperparameters))
    if not isinstance(model, nn.Module):
        found = type(model).__name__
        raise SpecError("model", f"{name} returned {found}: it must return a torch.nn.Module")
    if not any(each.requires_grad for each in model.parameters()):
        raise SpecError("model", f"{name} returned a model without parameters to train")
    return model


def _mlp(hyper: Hyper, samples: Samples) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(samples.shape)
    for _ in range(hyper.layers):
        layers += [nn.Linear(width, hyper.hidden), nn.ReLU()]
        if hyper.dropout:
            layers.append(nn.Dropout(hyper.dropout))
        width = hyper.hidden
    return nn.Sequential(*layers, nn.Linear(width, samples.classes))


def _cnn(hyper: Hyper, samples: Samples) -> nn.Module:
    """Return two convolutions, each followed by pooling that halves the picture."""
    depth, height, width = _picture(samples.shape)
    layers = [
        nn.Flatten(),
        nn.Unflatten(1, (depth, height, width)),
        nn.Conv2d(depth, hyper.channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(hyper.channels, 2 * hyper.channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    left = 2 * hyper.channels * (height // 4) * (width // 4)
    return nn.Sequential(*layers, nn.Linear(left, samples.classes))


def _picture(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width; a row of numbers may be a square."""
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    found = (side, side) if side and side * side == shape[0] else shape
    if len(found) not in (2, 3) or min(found[-2:]) < 4:
        problem = f"cnn takes pictures of at least 4 x 4, and a sample has the shape {shape}"
        raise SpecError("model", f"{problem}: take mlp, or samples (channels, height, width)")
    return (found[0] if len(found) == 3 else 1), found[-2], found[-1]


class Transformer(nn.Module):
    """Predicts the next token of every prefix of a window."""

    mask: Tensor

    def __init__(self, hyper: Hyper, tokens: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, hyper.width)
        self.places = nn.Parameter(0.02 * torch.randn(context, hyper.width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                *(hyper.width, hyper.heads, 4 * hyper.width, hyper.dropout),
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(hyper.layers)
        )
        self.norm = nn.LayerNorm(hyper.width)
        self.head = nn.Linear(hyper.width, tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each token."""
        length = tokens.shape[1]
        found = self.embedding(tokens) + self.places[:length]
        mask = self.mask[:length, :length]
        for block in self.blocks:
            found = block(found, src_mask=mask, is_causal=True)
        answer: Tensor = self.head(self.norm(found))
        return answer


def _transformer(hyper: Hyper, samples: Samples) -> nn.Module:
    if len(samples.shape) != 1:
        raise SpecError("dataset", f"transformer takes rows of tokens, not {samples.shape}")
    return Transformer(hyper, samples.classes, samples.shape[0])


MAKERS: Mapping[str, Make] = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
