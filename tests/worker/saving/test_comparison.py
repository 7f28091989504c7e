"""Two checkpoints side by side: the same bits are the same, the rest is told with its size."""

from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.worker.saving.inspection import compare, difference, is_same, read

from .saved import commit, network, state_of, stepped

pytestmark = pytest.mark.needs("torch")


def compared(tmp_path: Path, *states: Any) -> dict[str, Any]:
    for step, state in enumerate(states):
        commit(tmp_path, step, *state)
    first, second = (read(str(tmp_path), step) for step in range(2))
    return compare(first, second)


def test_the_same_state_has_no_difference(tmp_path: Path) -> None:
    model = network()
    state = state_of(model, stepped(model))

    found = compared(tmp_path, state, state)

    tensors = 4 + 4 * 3 + 2 * 3  # parameters, what AdamW has of each, buffers of two ranks
    assert found == {"same": tensors, "tensors": [], "only_a": [], "only_b": [], "values": []}


def test_one_element_and_one_value_are_found(tmp_path: Path) -> None:
    model = network()
    optimizer = stepped(model)
    before = state_of(model, optimizer)
    commit(tmp_path, 0, *before)
    with torch.no_grad():
        model[0].weight[1, 2] += 0.5  # type: ignore[index]
    optimizer.param_groups[0]["lr"] = 0.05
    commit(tmp_path, 1, *state_of(model, optimizer))

    found = compare(read(str(tmp_path), 0), read(str(tmp_path), 1))

    (row,) = found["tensors"]
    scale = float(before[0]["models"]["model"]["0.weight"].detach().abs().max())
    assert {**row, "relative": 0} == {
        "name": "model.0.weight",
        "shape": [8, 4],
        "dtype": "float32",
        "why": "",
        "max_abs": pytest.approx(0.5),
        "relative": 0,
        "changed": 1,
        "elements": 32,
    }
    assert 0 < row["relative"] <= 0.5 / (scale - 0.5)
    assert found["values"] == [{"name": "optimizer.param_groups.0.lr", "a": 0.1, "b": 0.05}]


def test_what_only_one_has_is_named(tmp_path: Path) -> None:
    model = network()

    found = compared(tmp_path, state_of(model, None, ranks=1), state_of(model, None, ranks=2))

    assert found["only_a"] == []
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert found["only_b"] == [f"rank 1: model.1.{name}" for name in names]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([0.0], [-0.0], False),
        ([1.0], [1.0000001], False),
    ],
)
def test_bits_decide(one: list[float], other: list[float], same: bool) -> None:
    assert is_same(torch.tensor(one), torch.tensor(other)) is same


@pytest.mark.parametrize(
    ("one", "other", "most", "changed"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 5]), 3.0, 1),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1.0, 1),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 0.0, 1),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.5]), 0.5, 1),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), None, 1),
        (torch.tensor([1.0]), torch.tensor([float("inf")]), None, 1),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 3j]), 2.0, 1),
        (torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([1.0, 3.0]).bfloat16(), 1.0, 1),
    ],
    ids=str,
)
def test_a_difference_has_a_size_in_every_type(
    one: torch.Tensor, other: torch.Tensor, most: float | None, changed: int
) -> None:
    row = difference("x", one, other)

    assert (row["max_abs"], row["changed"], row["why"]) == (most, changed, "")


def test_another_shape_or_type_is_said_in_words() -> None:
    whole = torch.zeros(2)

    assert difference("x", whole, torch.zeros(3))["why"] == "has the shape [3] in the second"
    assert difference("x", whole, whole.double())["why"] == "is float64 in the second"
