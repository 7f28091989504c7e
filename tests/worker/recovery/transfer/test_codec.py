"""Whatever a program's state holds comes back equal, and nothing of it is code."""

import enum
from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch

from torchloom.worker.recovery.transfer.channels import (
    PackedState,
    decode_kinds,
    encode_kinds,
    kinds_of,
    unpacked,
)
from torchloom.worker.saving.tree import Unsaveable

pytestmark = pytest.mark.needs("torch")


class Mode(enum.IntEnum):
    FAST = 2


def there_and_back(state: dict[str, Any]) -> dict[str, Any]:
    packed = PackedState(state)
    return unpacked(packed.plain, [tensor.clone() for tensor in packed.tensors])


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": None, "c": [True, 0.1, "x", b"y"]},
        {0: {"step": 3}, (1, "x"): 2, None: 4},
        (1, (2, [3, ()]), {"k": (4,)}),
        [float("inf"), -0.0, 1 << 70, -(1 << 63), 3 + 4j],
        {1, 2, 3},
        bytearray(b"abc"),
        [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")],
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = there_and_back({"value": value})

    assert back == {"value": value}
    assert repr(back) == repr({"value": value})


def test_what_only_looks_like_a_plain_value_comes_back_as_one() -> None:
    back = there_and_back({"mode": Mode.FAST, "n": numpy.float64(0.5), "m": OrderedDict(a=1)})

    assert back == {"mode": 2, "n": 0.5, "m": {"a": 1}}
    assert [type(one) for one in back.values()] == [int, float, dict]


def test_tensors_come_back_in_their_places_bit_by_bit() -> None:
    first, second = torch.tensor([1.5, float("nan")]), torch.zeros(2, 0, dtype=torch.bool)
    array = numpy.arange(4, dtype=numpy.int16)

    back = there_and_back({"a": [first, {"b": second}], "c": array})

    assert back["a"][0].view(torch.int32).tolist() == first.view(torch.int32).tolist()
    assert (back["a"][1]["b"].shape, back["a"][1]["b"].dtype) == (second.shape, torch.bool)
    assert (back["c"].tolist(), back["c"].dtype) == ([0, 1, 2, 3], numpy.int16)


def test_kinds_of_tensors_come_back() -> None:
    tensors = [torch.zeros(2, 3), torch.tensor(1), torch.zeros(0, 4, dtype=torch.float8_e4m3fn)]

    assert decode_kinds(encode_kinds(kinds_of(tensors))) == kinds_of(tensors)


def endless() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"tracked": {"mine": [1, object()]}}, "tracked.mine.1"),
        ({"a": {"b": torch.zeros(2, device="meta")}}, "a.b"),
        ({"a": torch.zeros(2).to_sparse()}, "a"),
        ({"f": {"g": lambda: None}}, "f.g"),
        ({"n": numpy.array(["x"])}, "n"),
    ],
)
def test_what_cannot_be_carried_is_named(state: dict[str, Any], where: str) -> None:
    with pytest.raises(Unsaveable, match=f"cannot save {where}: "):
        PackedState(state)


def test_a_state_that_contains_itself_is_refused() -> None:
    with pytest.raises(Unsaveable, match="does it contain itself"):
        PackedState(endless())
