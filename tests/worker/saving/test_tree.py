"""State is taken apart and put together: equal values, readable names, refusals that say where."""

import enum
import io
import random
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from torchloom.worker.saving import Unsaveable
from torchloom.worker.saving.tree import Flat, whole

from .alike import alike

pytestmark = pytest.mark.needs("torch")


class Color(enum.IntEnum):
    RED = 1


class Odd(torch.Tensor):
    pass


def kept(state: Any) -> Any:
    """Return a state after its skeleton went through torch's careful reader."""
    flat = Flat(state, "own")
    file = io.BytesIO()
    torch.save({"skeleton": flat.skeleton}, file)
    file.seek(0)
    return whole(torch.load(file, weights_only=True)["skeleton"], flat.tensors)


scalars = (
    some.none()
    | some.booleans()
    | some.integers(-(2**1000), 2**1000)
    | some.floats(allow_nan=False)
    | some.text()
    | some.sampled_from(["<tensor>", "<tuple>", "<array>", "<bytes>"])
    | some.binary()
    | some.complex_numbers(allow_nan=False)
)
keys = some.text() | some.integers() | some.booleans() | some.none() | some.tuples(some.text())
plain = some.recursive(
    scalars,
    lambda inner: some.lists(inner) | some.tuples(inner, inner) | some.dictionaries(keys, inner),
    max_leaves=10,
)


@given(plain)
def test_plain_values_come_back_equal(state: Any) -> None:
    found = kept(state)

    assert found == state
    assert repr(found) == repr(state) or isinstance(state, complex)


@pytest.mark.parametrize(
    "state",
    [
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        {torch.Size([1, 2]): torch.bfloat16, "device": torch.device("cpu")},
        {3: np.float32(0.5), "flag": np.bool_(True), "word": np.str_("a")},
        {"set": {1, "a"}, "frozen": frozenset([2]), "color": Color.RED, "array": bytearray(b"x")},
        {"arrays": [np.arange(6).reshape(2, 3), np.zeros(0), np.ones(3, dtype=">f4")]},
        ("<tensor>", "not one"),
        {"tuple": ("<bytes>", b"x")},
    ],
    ids=["random", "numpy", "torch", "keys", "scalars", "sets", "arrays", "mark", "marked"],
)
def test_what_programs_keep_comes_back_equal(state: Any) -> None:
    assert alike(kept(state), state)


def test_a_subclass_comes_back_as_what_it_is_made_of() -> None:
    pair = namedtuple("pair", "a b")
    counts: dict[str, int] = defaultdict(int, a=1)

    found = kept([pair(1, 2), counts, Color.RED, np.float64(2), {np.int64(3): 4}])

    assert repr(found) == "[(1, 2), {'a': 1}, 1, 2.0, {3: 4}]"


def test_a_modules_versions_come_back() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()

    found = kept(state)

    assert isinstance(found, OrderedDict)
    assert vars(found)["_metadata"] == state._metadata
    assert alike(found, state)


def test_names_are_paths_and_tied_tensors_have_one() -> None:
    weight = torch.ones(2, 2)
    state = {
        "model": {"in.weight": weight, "out.weight": weight, "row": weight[0]},
        "all": [weight],
    }

    flat = Flat(state, "shared")

    assert list(flat.tensors) == ["shared.model.in.weight", "shared.model.row"]
    assert alike(whole(flat.skeleton, flat.tensors), state)


def test_a_view_turned_by_a_flag_is_another_tensor() -> None:
    wave = torch.tensor([1 + 2j])

    flat = Flat([wave, wave.conj()], "own")

    assert list(flat.tensors) == ["own.0", "own.1"]


def test_keys_that_read_alike_keep_their_tensors_apart() -> None:
    state = {0: torch.zeros(1), "0": torch.ones(1), "a": {"b": torch.ones(2)}, "a.b": torch.ones(3)}

    flat = Flat(state, "own")

    assert list(flat.tensors) == ["own.0", "own.0'", "own.a.b", "own.a.b'"]
    assert alike(whole(flat.skeleton, flat.tensors), state)


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, {"b": object()}]}, "own.a.1.b"),
        ({"f": lambda: None}, "own.f"),
        ({"sparse": torch.eye(2).to_sparse()}, "own.sparse"),
        ({"meta": torch.empty(2, device="meta")}, "own.meta"),
        ({"odd": torch.ones(2).as_subclass(Odd)}, "own.odd"),
        ({"words": np.array(["a"])}, "own.words"),
        ({"objects": np.array([object()])}, "own.objects"),
        ({torch.ones(1): 1}, "own"),
        ({b"": 1}, "own"),
        ({"n": 2**5000}, "own.n"),
        ({"range": range(3)}, "own.range"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_saved_is_refused_by_its_path(state: Any, path: str) -> None:
    with pytest.raises(Unsaveable) as refused:
        Flat(state, "own")

    assert refused.value.path == path


def test_state_that_contains_itself_is_refused() -> None:
    with pytest.raises(Unsaveable, match="contain itself"):
        Flat(endless(), "own")
