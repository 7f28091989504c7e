"""The states of the random generators are those of now, however they have come to be."""

import random
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchloom.worker.recovery.transfer.channels import PackedState, unpacked
from torchloom.worker.run.rng import generator_states, restore_generators

pytestmark = pytest.mark.needs("torch")

USES: tuple[Callable[[], object], ...] = (
    random.random,
    lambda: random.gauss(0, 1),  # it draws two numbers, and keeps one
    lambda: random.seed(3),
    lambda: random.setstate(random.Random(5).getstate()),
    numpy.random.rand,
    numpy.random.randn,  # likewise
    lambda: numpy.random.seed(3),
    lambda: numpy.random.set_state(numpy.random.RandomState(5).get_state()),
    lambda: torch.rand(1),
    lambda: None,
)


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """Leave the generators as they were for other tests."""
    states = generator_states()
    yield
    restore_generators(states)


def numbers() -> list[float]:
    """Draw from each generator, also what it may have kept of the last draw."""
    own = [random.gauss(0, 1), random.random(), torch.rand(1).item()]
    return [*own, numpy.random.randn(), numpy.random.rand()]


@given(st.lists(st.sampled_from(USES), max_size=8))
def test_a_state_is_the_one_of_now_after_any_use(uses: list[Callable[[], object]]) -> None:
    for use in uses:
        use()
        found = generator_states()
        version, words, gauss = random.getstate()
        name, keys, *rest = numpy.random.get_state()

        assert found["random"] == (version, numpy.array(words, "uint32").tobytes(), gauss)
        assert (found["numpy"][0], *found["numpy"][2:]) == (name, *rest)
        assert (found["numpy"][1] == keys).all()
        assert torch.equal(found["torch"], torch.get_rng_state())


@given(st.lists(st.sampled_from(USES), max_size=4), st.lists(st.sampled_from(USES), max_size=4))
def test_the_same_numbers_follow_a_state_that_was_carried_and_restored(
    before: list[Callable[[], object]], after: list[Callable[[], object]]
) -> None:
    for use in before:
        use()
    packed = PackedState(generator_states())
    drawn = numbers()
    for use in after:
        use()

    restore_generators(unpacked(packed.plain, packed.tensors))

    assert numbers() == drawn
