"""State as bytes without code: tensors as they are in memory, all else as msgpack."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import prod
from typing import Any

import msgspec
import torch
from torch import Tensor

from torchloom.worker.saving.tree import Unsaveable

State = dict[str, Any]
Kind = tuple[torch.dtype, torch.Size]  # of a tensor

_TENSOR, _TUPLE, _PAIRS, _SET, _INT, _TORCH, _ARRAY, _BYTEARRAY, _COMPLEX = range(1, 10)
_DEEPEST = 100
_WORD = 1 << 63
_PLAIN = frozenset((type(None), bool, float, str, bytes))
_BASES: tuple[type[Any], ...] = (int, float, str, bytes, list, tuple)
_TENSORS = (Tensor, torch.nn.Parameter)
_DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
_NAMES = {one: name for name, one in _DTYPES.items()}

_encode = msgspec.msgpack.Encoder().encode
_Ext = msgspec.msgpack.Ext


class PackedState:
    """A state taken apart: its tensors in order, and the rest as bytes."""

    __slots__ = ("plain", "tensors")

    def __init__(self, state: State) -> None:
        self.tensors: list[Tensor] = []
        try:
            self.plain = _encode(self._of(state, 0))
        except _Odd as error:
            raise Unsaveable(_path_to(error.value, state), error.why) from None

    def _of(self, value: Any, depth: int) -> Any:
        """Return a value as msgpack has it; what is common comes first."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -_WORD <= value < _WORD else _Ext(_INT, str(value).encode())
        if isinstance(value, Tensor):
            return self._tensor(value)
        if depth > _DEEPEST:
            raise _Odd(value, "it is nested too deeply; does it contain itself?")
        if kind is dict:
            return self._mapping(value, depth)
        if kind is list:
            return [self._of(item, depth + 1) for item in value]
        if kind is tuple:
            return _Ext(_TUPLE, _encode([self._of(item, depth + 1) for item in value]))
        return self._rare(value, depth + 1)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        plain = {key: self._of(item, depth + 1) for key, item in value.items()}
        for key in plain:
            if type(key) is not str:
                break
        else:
            return plain
        pairs = [[self._of(key, depth + 1), item] for key, item in plain.items()]
        return _Ext(_PAIRS, _encode(pairs))

    def _tensor(self, value: Tensor) -> Any:
        if type(value) not in _TENSORS:
            raise _Odd(value, f"{type(value).__qualname__} is no plain tensor")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise _Odd(value, "only dense tensors with data can be carried")
        self.tensors.append(value)
        return _Ext(_TENSOR, (len(self.tensors) - 1).to_bytes(4, "little"))

    def _rare(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Size | torch.dtype | torch.device):
            return _Ext(_TORCH, _encode(_torch_name(value)))
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            return self._numpy(value)
        if isinstance(value, complex):
            return _Ext(_COMPLEX, _encode([value.real, value.imag]))
        if isinstance(value, bytearray):
            return _Ext(_BYTEARRAY, bytes(value))
        if isinstance(value, Set):
            return _Ext(_SET, _encode([self._of(item, depth) for item in value]))
        for base in _BASES:
            if isinstance(value, base):  # a member of an enum, or of another subclass
                return self._of(base(value), depth)
        raise _Odd(value, f"{type(value).__qualname__} is no tensor, plain value or container")

    def _numpy(self, value: Any) -> Any:
        if value.dtype.kind not in "biufc":
            raise _Odd(value, f"numpy's {value.dtype} is no number")
        if type(value).__name__ != "ndarray":
            return self._of(value.item(), 0)
        try:
            plain = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise _Odd(value, str(error)) from None
        return _Ext(_ARRAY, self._tensor(plain).data)


class _Odd(Exception):
    """A value that cannot be encoded; its place in the state is searched only then."""

    def __init__(self, value: Any, why: str) -> None:
        self.value = value
        self.why = why


def _path_to(value: Any, within: Any, name: str = "", depth: int = 0) -> str:
    """Return where in a state this very object is."""
    if within is value or depth > _DEEPEST:
        return name
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(within, Mapping):
        parts = within.items()
    elif isinstance(within, list | tuple | Set):
        parts = enumerate(within)
    paths = (_path_to(value, part, f"{name}.{key}", depth + 1) for key, part in parts)
    return next((path for path in paths if path), "").removeprefix(".")


def kinds_of(tensors: Sequence[Tensor]) -> list[Kind]:
    """Return what decides how much room tensors take."""
    return [(each.dtype, each.shape) for each in tensors]


def size_of(kind: Kind) -> int:
    """Return the bytes of a tensor of this kind."""
    return prod(kind[1]) * kind[0].itemsize


def encode_kinds(kinds: Sequence[Kind]) -> bytes:
    """Return kinds as bytes."""
    return _encode([[_NAMES[dtype], list(shape)] for dtype, shape in kinds])


def decode_kinds(text: bytes | memoryview) -> list[Kind]:
    """Return what `encode_kinds` was given; raises for other bytes."""
    parts = msgspec.msgpack.decode(text, type=list[tuple[str, list[int]]])
    return [(_DTYPES[name], torch.Size(shape)) for name, shape in parts]


def unpacked(plain: bytes | memoryview, tensors: Sequence[Tensor]) -> State:
    """Return a state put together again."""

    def of(code: int, data: memoryview) -> Any:
        if code in (_TENSOR, _ARRAY):
            tensor = tensors[int.from_bytes(data, "little")]
            return tensor if code == _TENSOR else tensor.numpy()
        if code in (_INT, _BYTEARRAY):
            return int(bytes(data)) if code == _INT else bytearray(data)
        return _BUILD[code](decoder.decode(data))

    decoder = msgspec.msgpack.Decoder(ext_hook=of)
    state: State = decoder.decode(plain)
    return state


def _torch_name(value: Any) -> list[Any]:
    if isinstance(value, torch.Size):
        return ["size", list(value)]
    return ["dtype" if isinstance(value, torch.dtype) else "device", str(value)]


def _torch_value(parts: list[Any]) -> Any:
    if parts[0] == "size":
        return torch.Size(parts[1])
    return _DTYPES[parts[1]] if parts[0] == "dtype" else torch.device(parts[1])


_BUILD: Mapping[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _PAIRS: dict,
    _SET: set,
    _TORCH: _torch_value,
    _COMPLEX: lambda parts: complex(*parts),
}
