"""How many samples a rank trains on, as its loader deals them and its `backward` takes them."""

import time

import pytest

from torchloom.worker.programs.plain import BatchGauge

pytestmark = pytest.mark.needs("torch")


class Batches:
    """An iterator of a loader."""


class Batch:
    shape = (10, 3)


@pytest.mark.parametrize(("dealt", "trained", "samples"), [(3, 2, 20), (2, 3, 20), (2, 0, 0)])
def test_each_batch_that_is_trained_on_counts_once_however_many_are_read_ahead(
    dealt: int, trained: int, samples: int
) -> None:
    first = time.monotonic()
    gauge, batches, evaluation = BatchGauge(), Batches(), Batches()
    second = time.monotonic()
    for _ in range(5):
        gauge.dealt(evaluation, Batch())
    for _ in range(dealt):
        gauge.dealt(batches, Batch())
    for _ in range(trained):
        gauge.trained(None)
    third = time.monotonic()
    rate = gauge.read().get("loom/samples_per_second", 0.0)
    last = time.monotonic()

    assert rate * (third - second) <= samples <= rate * (last - first)
