import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from torchloom.specs.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """Made by ours."""

    x: int
    y: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Other:
    """The same fields in another class."""

    x: int
    y: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields at all."""


@dataclass(frozen=True, slots=True)
class One:
    """A single field."""

    name: str


@dataclass(frozen=True, slots=True)
class Headed:
    """Says itself what is equal, and how it looks."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headed) and self.name[0] == other.name[0]

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True)
class Far(Point):
    """Has the fields of another before its own, and checks them."""

    z: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


def test_a_derived_class_takes_the_fields_of_both_and_runs_its_own_check() -> None:
    assert (Far(1, z=2), Far(1, [], "", 2).z) == (Far(1, [], "", 2), 2)
    with pytest.raises(ValueError, match="x is negative"):
        Far(-1)


def test_the_constructor_is_made_by_the_first_call_and_is_as_strict_as_the_standard_one() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    before = Late.__init__
    Late(1)

    assert Late.__init__ is not before
    for wrong in ({}, {"y": 1}, {"x": 1, "y": 2}):
        with pytest.raises(TypeError, match="Late"):
            Late(**wrong)


def test_values_are_equal_where_class_and_compared_fields_are() -> None:
    assert Point(1, [2], "a") == Point(1, [2], "b")
    other: object = Other(1)
    assert (Point(1) == Point(2), Point(1) == other, Nothing() == Nothing()) == (False, False, True)
    assert {One("a"): 1}[One("a")] == 1
    assert len({Nothing(), Nothing(), One("a"), One("b")}) == 3


def test_a_value_looks_as_the_standard_one_does() -> None:
    standard = dataclasses.make_dataclass("Point", [("x", int), ("y", list[int])])

    assert [repr(Point(1, [2], "a")), repr(Nothing())] == [repr(standard(1, [2])), "Nothing()"]


def test_no_field_can_be_set_again_or_deleted() -> None:
    point: Any = Point(1)

    for name in ("x", "note"):
        with pytest.raises(FrozenInstanceError):
            setattr(point, name, 2)
        with pytest.raises(FrozenInstanceError):
            delattr(point, name)
    with pytest.raises(AttributeError):
        point.z = 1

    assert point == Point(1)


def test_copies_replacements_and_pickles_are_values_again() -> None:
    point = Point(1, [2], "a")

    copies = [copy.copy(point), copy.deepcopy(point), _pickled(point)]

    assert [*copies, dataclasses.replace(point, y=[2])] == [point] * 4
    assert dataclasses.asdict(point) == {"x": 1, "y": [2], "note": "a"}
    match point:
        case Point(x, y):
            assert (x, y) == (1, [2])


def _pickled(value: object) -> object:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


def test_methods_of_the_class_itself_stay() -> None:
    assert Headed("anna") == Headed("arno")
    assert hash(Headed("anna")) != hash(Headed("arno"))
    assert repr(Headed("anna")) == "<anna>"


def test_other_options_are_the_standard_decorators() -> None:
    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        n: int

    @dataclass
    class Mutable:
        n: int

    mutable = Mutable(1)
    mutable.n = 2

    assert (Ordered(1) < Ordered(2), mutable) == (True, Mutable(2))
