"""The ready-made models as functions of JAX, over weights with torch's names and shapes."""

import math
from collections.abc import Callable

import jax
from jax import Array, nn
from jax import numpy as jnp

from torchloom.worker.train.hyperparameters import Hyper

Weights = dict[str, Array]
Forward = Callable[[Hyper, Weights, Array, Array | None], Array]
_EPSILON = 1e-5  # of torch's LayerNorm


class Dropout:
    """Drops a share of values, other ones at each call; without a key it drops none."""

    def __init__(self, share: float, key: Array | None) -> None:
        self._share = share
        self._key = key if share else None
        self._calls = 0

    def __call__(self, values: Array) -> Array:
        if self._key is None:
            return values
        key = jax.random.fold_in(self._key, self._calls)
        self._calls += 1
        is_kept = jax.random.bernoulli(key, 1.0 - self._share, values.shape)
        return jnp.where(is_kept, values / (1.0 - self._share), jnp.zeros_like(values))


def mlp(hyper: Hyper, weights: Weights, samples: Array, key: Array | None) -> Array:
    """Return the logits of samples of any shape."""
    dropout = Dropout(hyper.dropout, key)
    layers = sorted({int(name.partition(".")[0]) for name in weights})
    found = samples.reshape(len(samples), -1)
    for at in layers[:-1]:
        found = dropout(nn.relu(_linear(weights, str(at), found)))
    return _linear(weights, str(layers[-1]), found)


def transformer(hyper: Hyper, weights: Weights, samples: Array, key: Array | None) -> Array:
    """Return the logits of the token after each token of windows."""
    dropout = Dropout(hyper.dropout, key)
    found = weights["embedding.tokens.weight"][samples]
    found = found + weights["embedding.places"][: samples.shape[1]]
    for at in range(hyper.layers):
        block = f"blocks.{at}"
        normed = _norm(weights, f"{block}.norm1", found)
        found = found + dropout(_attention(hyper, weights, f"{block}.attention", normed, dropout))
        inner = _linear(weights, f"{block}.up", _norm(weights, f"{block}.norm2", found))
        inner = nn.gelu(inner, approximate=False)
        found = found + dropout(_linear(weights, f"{block}.down", inner))
    return _linear(weights, "head", _norm(weights, "norm", found))


def _linear(weights: Weights, name: str, values: Array) -> Array:
    return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, values: Array) -> Array:
    mean = values.mean(-1, keepdims=True)
    spread = jnp.square(values - mean).mean(-1, keepdims=True)
    normed = (values - mean) * jax.lax.rsqrt(spread + _EPSILON)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attention(hyper: Hyper, weights: Weights, name: str, values: Array, dropout: Dropout) -> Array:
    """Return what each token has seen of itself and of those before it."""
    count, length, width = values.shape
    size = width // hyper.heads

    def headed(part: str) -> Array:
        found = _linear(weights, f"{name}.{part}", values)
        return found.reshape(count, length, hyper.heads, size).transpose(0, 2, 1, 3)

    query, key, value = (headed(part) for part in ("query", "key", "value"))
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(size)
    is_before = jnp.tril(jnp.ones((length, length), bool))
    shares = nn.softmax(jnp.where(is_before, scores, -jnp.inf), axis=-1)
    seen = (dropout(shares) @ value).transpose(0, 2, 1, 3).reshape(count, length, width)
    return _linear(weights, f"{name}.out", seen)


MODELS: dict[str, Forward] = {"mlp": mlp, "transformer": transformer}
