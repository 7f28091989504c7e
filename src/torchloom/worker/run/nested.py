"""Find and replace tensors in nested containers."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in containers and data classes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the containers with each tensor replaced; other objects are kept."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: replaced(part, change) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replaced(part, change) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(part, change) for part in value))
    return value


def plain(value: Any) -> Any:
    """Return a state with every mapping converted to a dict; other values are kept."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(part) for part in value)
    return value
