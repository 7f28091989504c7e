"""Split state into named tensors and a plain skeleton, and join them again.

A skeleton has only values that `torch.load(weights_only=True)` restores. A tensor is replaced by
`("<tensor>", name)`; a tuple that looks like such a mark is marked itself.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import torch

from torchloom.errors import UserError, shorten

_TENSOR, _ARRAY, _BYTES, _TUPLE = "<tensor>", "<array>", "<bytes>", "<tuple>"
_MARKS = (_TENSOR, _ARRAY, _BYTES, _TUPLE)
_DEEPEST = 100
_LARGEST = 2000  # bits of an integer that torch's safe unpickler reads
_PLAIN = frozenset(
    (type(None), bool, float, str, complex, bytearray, torch.Size, torch.dtype, torch.device)
)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Unsaveable(UserError):
    """The state has a value that a checkpoint cannot hold; the message names it."""

    code = "unsaveable"

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"cannot save {shorten(path, 200)}: {why}")


class Flat:
    """A state split into tensors by name, each memory once, and the skeleton."""

    def __init__(self, state: Any, name: str) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self.skeleton = self._plain(state, name, 0)

    def _plain(self, value: Any, name: str, depth: int) -> Any:
        """Return a value for the skeleton; the most frequent types are tested first."""
        kind = type(value)
        if kind in _TENSORS:
            return (_TENSOR, self._tensor(value, name))
        if kind in _PLAIN:
            return value
        if kind is int and value.bit_length() <= _LARGEST:
            return value
        if depth > _DEEPEST:
            raise Unsaveable(name, "it is nested too deeply; does it contain itself?")
        for known, convert in _KINDS:
            if isinstance(value, known):
                return convert(self, value, name, depth + 1)
        if kind.__module__ == "numpy" and hasattr(value, "dtype"):
            return self._numpy(value, name)
        raise Unsaveable(name, f"{kind.__qualname__} is not a tensor, plain value or container")

    def _mapping(self, value: Mapping[Any, Any], name: str, depth: int) -> dict[Any, Any]:
        plain: dict[Any, Any] = {
            key if type(key) is str else self._key(key, name): self._plain(
                item, f"{name}.{key}", depth
            )
            for key, item in value.items()
        }
        metadata = getattr(value, "_metadata", None)  # a module's: the versions of its parts
        if metadata is not None:
            plain = OrderedDict(plain)
            vars(plain)["_metadata"] = self._plain(metadata, f"{name}._metadata", depth)
        return plain

    def _items(self, value: Iterable[Any], name: str, depth: int) -> list[Any]:
        return [self._plain(item, f"{name}.{at}", depth) for at, item in enumerate(value)]

    def _tuple(self, value: tuple[Any, ...], name: str, depth: int) -> Any:
        items = self._items(value, name, depth)
        is_like_a_mark = len(items) == 2 and isinstance(value[0], str) and value[0] in _MARKS
        return (_TUPLE, items) if is_like_a_mark else tuple(items)

    def _set(self, value: Set[Any], name: str, _: int) -> set[Any]:
        return {self._key(item, name) for item in value}

    def _bytes(self, value: bytes, _name: str, _depth: int) -> Any:
        return (_BYTES, bytearray(value))

    def _int(self, value: int, name: str, _: int = 0) -> int:
        if value.bit_length() > _LARGEST:
            raise Unsaveable(name, f"an integer of more than {_LARGEST} bits")
        return int(value)

    def _float(self, value: float, _name: str, _depth: int) -> float:
        return float(value)

    def _str(self, value: str, _name: str, _depth: int) -> str:
        return str.__str__(value)

    def _odd_tensor(self, value: torch.Tensor, name: str, _: int) -> Any:
        raise Unsaveable(name, f"{type(value).__qualname__} is not a plain tensor")

    def _numpy(self, value: Any, name: str) -> Any:
        if value.dtype.kind not in "biufc":
            raise Unsaveable(name, f"numpy's {value.dtype} is not a number")
        if type(value).__name__ != "ndarray":
            return value.item()
        try:
            tensor = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise Unsaveable(name, str(error)) from None
        return (_ARRAY, self._tensor(tensor, name))

    def _key(self, key: Any, name: str) -> Any:
        """Return the key of a mapping or item of a set: a plain value, or a tuple of those."""
        if isinstance(key, tuple) and type(key) is not torch.Size:
            return tuple(self._key(item, name) for item in key)
        if isinstance(key, bytes) and key:
            return bytes(key)
        if isinstance(key, torch.Tensor | bytes | Mapping | Set):
            raise Unsaveable(name, f"the key {shorten(repr(key))} is not a plain value")
        return self._plain(key, f"{name}.{key}", 0)

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        """Add a tensor and return its name; a tensor that is known keeps its first name."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise Unsaveable(name, "only dense tensors with data can be saved")
        while name in self.tensors:
            name += "'"  # keys 0 and "0", or "a.b" beside "a" with "b"
        if tensor.numel():
            same = (
                tensor.data_ptr(),
                tensor.dtype,
                tensor.shape,
                tensor.stride(),
                tensor.is_conj(),
                tensor.is_neg(),
                tensor.device,
            )
            known = self._names.setdefault(same, name)
            if known != name:
                return known
        self.tensors[name] = tensor
        return name


_KINDS: tuple[tuple[Any, Callable[[Flat, Any, str, int], Any]], ...] = (
    (Mapping, Flat._mapping),
    (tuple, Flat._tuple),
    (list, Flat._items),
    (int, Flat._int),
    (float, Flat._float),
    (str, Flat._str),
    (bytes, Flat._bytes),
    (Set, Flat._set),
    (torch.Tensor, Flat._odd_tensor),
)


def whole(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state of a skeleton; raise KeyError for a missing tensor."""
    if isinstance(skeleton, dict):
        plain = {key: whole(item, tensors) for key, item in skeleton.items()}
        if not isinstance(skeleton, OrderedDict):
            return plain
        ordered: OrderedDict[Any, Any] = OrderedDict(plain)
        vars(ordered).update(whole(vars(skeleton), tensors))
        return ordered
    if isinstance(skeleton, list):
        return [whole(item, tensors) for item in skeleton]
    if isinstance(skeleton, tuple) and type(skeleton) is not torch.Size:
        return _unmarked(skeleton, tensors)
    return skeleton


def _unmarked(skeleton: tuple[Any, ...], tensors: Mapping[str, torch.Tensor]) -> Any:
    match skeleton:
        case ("<tensor>", str(name)):
            return tensors[name]
        case ("<array>", str(name)):
            return tensors[name].numpy()
        case ("<bytes>", bytearray(content)):
            return bytes(content)
        case ("<tuple>", list(items)):
            return tuple(whole(item, tensors) for item in items)
    return tuple(whole(item, tensors) for item in skeleton)
