"""The models of the ready-made training, by name."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchloom.specs.exceptions import SpecError
from torchloom.specs.framework import MODULE
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.train.data import Samples
from torchloom.worker.train.hyperparameters import Hyper, check_fit, own_function

Make = Callable[[Hyper, Samples], nn.Module]
_PAIR = ("colwise", "rowwise")


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


class Mlp(nn.Sequential):
    """Linear layers, one after another."""

    def tensor_plan(self, is_sequential: bool) -> dict[str, str]:
        """Return the plan of tensor parallelism: layers in pairs; an odd last one is whole."""
        if is_sequential:
            return {}
        linear = [name for name, each in self.named_children() if isinstance(each, nn.Linear)]
        pairs = zip(linear[::2], linear[1::2], strict=False)
        return {name: style for pair in pairs for name, style in zip(pair, _PAIR, strict=True)}


def _mlp(hyper: Hyper, samples: Samples) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(samples.shape)
    for _ in range(hyper.layers):
        layers += [nn.Linear(width, hyper.hidden), nn.ReLU()]
        if hyper.dropout:
            layers.append(nn.Dropout(hyper.dropout))
        width = hyper.hidden
    return Mlp(*layers, nn.Linear(width, samples.classes))


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


class Attention(nn.Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self._size = width // heads  # of a head; a rank may have some of the heads only
        self._dropout = dropout

    def forward(self, found: Tensor) -> Tensor:
        """Return what each token has seen."""
        query, key, value = (
            layer(found).unflatten(-1, (-1, self._size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self._dropout * self.training, is_causal=True
        )
        answer: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return answer


class TransformerBlock(nn.Module):
    """Attention and two layers for each token, each added to what was there."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, found: Tensor) -> Tensor:
        """Return the activations after this block."""
        seen: Tensor = found + self.dropout(self.attention(self.norm1(found)))
        inner = self.dropout(nn.functional.gelu(self.up(self.norm2(seen))))
        answer: Tensor = seen + self.dropout(self.down(inner))
        return answer


class TokenEmbedding(nn.Module):
    """A vector for each token and each place."""

    def __init__(self, tokens: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the activations before the first block."""
        answer: Tensor = self.tokens(tokens) + self.places[: tokens.shape[1]]
        return answer


class Transformer(nn.Module):
    """Predicts the next token of every prefix of a window."""

    def __init__(self, hyper: Hyper, tokens: int, context: int) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(tokens, context, hyper.width)
        self.blocks = nn.ModuleList(
            TransformerBlock(hyper.width, hyper.heads, hyper.dropout) for _ in range(hyper.layers)
        )
        self.norm = nn.LayerNorm(hyper.width)
        self.head = nn.Linear(hyper.width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each token."""
        found = self.embedding(tokens)
        for block in self.blocks:
            found = block(found)
        answer: Tensor = self.head(self.norm(found))
        return answer

    def pipeline_plan(self) -> list[list[str]]:
        """Return the modules in order, in groups that stay in one stage."""
        groups = [[f"blocks.{at}"] for at in range(len(self.blocks))]
        groups[0].insert(0, "embedding")
        groups[-1] += ["norm", "head"]
        return groups

    def tensor_plan(self, is_sequential: bool) -> dict[str, str]:
        """Return how tensor parallelism divides the layers, and the sequence between them."""
        divided = {
            "blocks.*.attention.query": "colwise",
            "blocks.*.attention.key": "colwise",
            "blocks.*.attention.value": "colwise",
            "blocks.*.attention.out": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
        }
        if not is_sequential:
            return {"blocks.*.attention": "shared_input", **divided}
        return {
            **divided,
            "embedding": "split_output",
            "blocks.*.norm1": "sequence",
            "blocks.*.attention": "whole_input",
            "blocks.*.attention.out": "rowwise_to_sequence",
            "blocks.*.norm2": "sequence",
            "blocks.*.up": "colwise_of_sequence",
            "blocks.*.down": "rowwise_to_sequence",
            "norm": "sequence",
            "head": "gathered_input",
        }


def _transformer(hyper: Hyper, samples: Samples) -> nn.Module:
    if len(samples.shape) != 1:
        raise SpecError("dataset", f"transformer takes rows of tokens, not {samples.shape}")
    return Transformer(hyper, samples.classes, samples.shape[0])


MAKERS: Mapping[str, Make] = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
