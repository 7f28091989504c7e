"""The TensorFlow adapter: a MultiWorkerMirroredStrategy exchanges the gradients of the ranks.

This module is the only one that imports TensorFlow. The cluster is in `TF_CONFIG`, which is made
from our ranks.
"""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy
import tensorflow

from torchloom.specs.jobspec import JobSpec
from torchloom.worker import dist as ranks
from torchloom.worker import environment
from torchloom.worker.run.rng import mix
from torchloom.worker.train.adapter import WorkerPlan
from torchloom.worker.train.foreign import (
    Arrays,
    Engine,
    ForeignAdapter,
    ForeignPair,
    Moments,
    Rates,
    addresses_of,
    moved,
    tensorflow_cluster,
)
from torchloom.worker.train.hyperparameters import Hyper
from torchloom.worker.train.pytorch import seed_of

tf: Any = tensorflow  # it has no types


class TensorFlowAdapter(ForeignAdapter):
    """Data-parallel training with TensorFlow."""

    def start(self, plan: WorkerPlan, rank: int, world_size: int) -> Engine:
        """Join the other ranks as workers of one cluster."""
        if not plan.gpus:
            tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(plan.cpus)
        tf.config.experimental.enable_op_determinism()
        if world_size == 1:
            return TensorFlowEngine(tf.distribute.get_strategy())
        environment.export(tensorflow_cluster(addresses_of(rank, world_size), rank))
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        kind = tf.distribute.MultiWorkerMirroredStrategy
        return TensorFlowEngine(kind(communication_options=options))


class TensorFlowEngine:
    """Traced functions over tensors that are equal on every rank."""

    name = "tensorflow"
    version: str = tf.__version__
    devices = 1

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._gradients = tf.function(_gradients)
        self._score = tf.function(_score)
        self._move = tf.function(self._moved)

    def put(self, array: "numpy.ndarray[Any, Any]") -> Any:
        """Return an array as a tensor."""
        return tf.constant(array)

    def get(self, array: Any) -> "numpy.ndarray[Any, Any]":
        """Return a copy of a tensor."""
        return numpy.array(array.numpy())

    def gradients(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pairs: list[ForeignPair], step: int
    ) -> tuple[Any, float, float]:
        """Return this rank's gradients, its loss and its share of right predictions."""
        total, loss, right, counted = None, 0.0, 0.0, 0
        for number, pair in enumerate(pairs):
            seed = mix(seed_of(spec), ranks.get_rank(), step, number)
            place = tf.constant([seed & 0x7FFFFFFF, seed >> 32], tf.int32)
            inputs = tf.constant(pair.samples), tf.constant(pair.targets)
            weight = tf.constant(pair.weight, tf.float32)
            found, cost, hits = self._gradients(weights, *inputs, weight, hyper.dropout, place)
            total = found if total is None else tf.nest.map_structure(tf.add, total, found)
            loss += float(cost)
            right += float(hits)
            counted += pair.targets.size
        return total, loss, right / counted

    def move(
        self, hyper: Hyper, weights: Arrays, gradients: Any, moments: Moments, rates: Rates
    ) -> tuple[Arrays, Moments]:
        """Exchange the gradients and take a step."""
        numbers = [tf.constant(each, tf.float32) for each in astuple(rates)]
        found: tuple[Arrays, Moments]
        found = self._move(hyper.optimizer, weights, gradients, moments, numbers)
        return found

    def score(
        self, spec: JobSpec, hyper: Hyper, weights: Arrays, pair: ForeignPair
    ) -> tuple[float, float, int]:
        """Return mean loss, right predictions and predictions of a batch."""
        loss, hits = self._score(weights, tf.constant(pair.samples), tf.constant(pair.targets))
        return float(loss), float(hits), pair.targets.size

    def _moved(
        self, optimizer: str, weights: Arrays, own: Arrays, moments: Moments, numbers: Sequence[Any]
    ) -> tuple[Arrays, Moments]:
        """Take a step with the mean of the gradients over the ranks."""
        means = self._strategy.run(_exchanged, args=(own,))
        rates = Rates(*numbers)
        scale = rates.scale(tf.linalg.global_norm(list(means.values())), tf.minimum)
        found = {
            name: moved(optimizer, each, means[name] * scale, moments[name], rates)
            for name, each in weights.items()
        }
        return (
            {name: weight for name, (weight, _) in found.items()},
            {name: kept for name, (_, kept) in found.items()},
        )


def _exchanged(own: Arrays) -> Any:
    """Return the mean of the gradients over the ranks; called on each of them."""
    placed = tf.nest.map_structure(tf.identity, own)  # on this rank's device
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, placed)


def _mlp(weights: Arrays, samples: Any, dropout: float, place: Any) -> Any:
    """Return the logits of samples of any shape, by weights with torch's names and shapes."""
    layers = sorted({int(name.partition(".")[0]) for name in weights})
    found = tf.reshape(samples, [tf.shape(samples)[0], -1])
    for at in layers:
        weight, bias = weights[f"{at}.weight"], weights[f"{at}.bias"]
        found = tf.linalg.matmul(found, weight, transpose_b=True) + bias
        if at != layers[-1]:
            found = tf.nn.relu(found)
            if dropout and place is not None:
                found = tf.nn.experimental.stateless_dropout(found, dropout, tf.add(place, [0, at]))
    return found


def _score(weights: Arrays, samples: Any, targets: Any) -> tuple[Any, Any]:
    logits = _mlp(weights, samples, 0.0, None)
    return _loss(logits, targets), _hits(logits, targets)


def _gradients(
    weights: Arrays, samples: Any, targets: Any, weight: Any, dropout: float, place: Any
) -> tuple[Any, Any, Any]:
    """Return gradients, the weighted loss, and how many predictions are right."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = _mlp(weights, samples, dropout, place)
        loss = _loss(logits, targets) * weight
    return tape.gradient(loss, weights), loss, _hits(logits, targets)


def _loss(logits: Any, targets: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_mean(losses)


def _hits(logits: Any, targets: Any) -> Any:
    return tf.reduce_sum(tf.cast(tf.argmax(logits, -1) == targets, tf.float32))
