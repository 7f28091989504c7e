"""State as bytes, and their way to other members: a file in shared memory, or the group.

On a busy machine it is not bytes that take time but processes that wake each other up. So a state
of a few chunks takes one word from its source to its target, and no answer.
"""

import contextlib
import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed
import xxhash
from torch import Tensor

from torchloom.worker.saving.tree import Unsaveable

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SET_PTRACER = 0x59616D61
_ANY_PROCESS, _NO_PROCESS = ctypes.c_ulong(-1), ctypes.c_ulong(0)
_BY_CONSENT = "1"  # a process allows others to read it
CHUNK = 16 << 20  # bytes
PART = 4  # chunks in a file that are announced together
T = TypeVar("T")
U = TypeVar("U")
_BYTE = torch.uint8
_AHEAD = 3  # chunks on their way at a time
_WORDS, _BYTES = 1, 2  # tags
_FAILED = -1
_HALF = 1 << 63


class _IoVector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int, address: int, into: memoryview) -> None:
    """Fill memory of ours with that of another process; OSError where that cannot be."""
    ours, done = address_of(into), 0
    while done < len(into):
        left = len(into) - done
        here, there = _IoVector(ours + done, left), _IoVector(address + done, left)
        got = _library().process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += got


def address_of(view: memoryview) -> int:
    """Return where memory that may be written to begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


@contextlib.contextmanager
def readable_memory() -> Iterator[None]:
    """Allow other processes of this user to read our memory, where the kernel asks for that."""
    is_asked = _scope() == _BY_CONSENT
    if is_asked:
        _library().prctl(_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
    try:
        yield
    finally:
        if is_asked:
            _library().prctl(_SET_PTRACER, _NO_PROCESS, 0, 0, 0)


def can_be_read() -> bool:
    """Return whether this system can read the memory of other processes."""
    return hasattr(_library(), "process_vm_readv")


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # a system without it
        library.process_vm_readv.restype = ctypes.c_ssize_t
        library.process_vm_readv.argtypes = [
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
            *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
        ]
    return library


def _scope() -> str:
    try:
        return _SCOPE.read_text().strip()
    except OSError:
        return ""


_dist: Any = torch.distributed  # torch declares no types for these


class TransferInterrupted(Exception):
    """The source could not give all of it."""


def send_numbers(peers: Iterable[int], words: Sequence[int]) -> None:
    """Send numbers to members that wait for them."""
    for peer in peers:
        _dist.send(torch.tensor(words, dtype=torch.int64), peer, tag=_WORDS)


def receive_numbers(peer: int, count: int) -> list[int]:
    """Return the numbers that a member sends."""
    words = torch.zeros(count, dtype=torch.int64)
    _dist.recv(words, peer, tag=_WORDS)
    numbers: list[int] = words.tolist()
    return numbers


# Through a file.


def write_chunks(
    fd: int,
    head: memoryview,
    parts: Sequence[tuple[int, memoryview]],
    peers: Sequence[int],
    offer: Callable[[int], Sequence[int]],
) -> None:
    """Write the head and the parts, and report to the targets how many are there.

    That is a part of the `offer` when it is sent for the first time. The hashes come last.
    """
    hashes: list[int] = []
    words = offer
    try:
        _put(fd, 0, head)
        for begin in range(0, len(parts), PART):
            if begin:
                send_numbers(peers, words(begin))
                words = _alone
            group = parts[begin : begin + PART]
            hashes += at_once(lambda part: _put(fd, *part), group, PART)
    except OSError:
        send_numbers(peers, words(_FAILED))
        raise
    send_numbers(peers, words(len(parts)))
    if hashes:
        send_numbers(peers, hashes)


def arrivals(count: int, source: int, ready: int) -> Iterator[int]:
    """Yield the number of each chunk as soon as it is in the file; so many are there."""
    for at in range(count):
        while 0 <= ready <= at:
            (ready,) = receive_numbers(source, 1)
        if ready < 0:
            raise TransferInterrupted
        yield at


def mapped(fd: int, place: int, size: int, is_alone: bool) -> memoryview:
    """Return a part of the file as memory of our own: all of it, or what we change of it."""
    kind = mmap.MAP_SHARED if is_alone else mmap.MAP_PRIVATE
    return memoryview(mmap.mmap(fd, size, flags=kind, offset=place))


def _alone(count: int) -> list[int]:
    return [count]


def _put(fd: int, place: int, chunk: memoryview) -> int:
    """Write a chunk, and return its hash."""
    if os.pwrite(fd, chunk, place) != len(chunk):
        raise OSError("a file took a part of a chunk only")
    return hash_of(chunk)


# By the group.


def send_chunks(chunks: Iterable[memoryview], peers: Sequence[int]) -> None:
    """Send chunks, some ahead; return when all are sent."""
    under_way: list[list[Any]] = []
    for chunk in chunks:
        tensor = torch.frombuffer(chunk, dtype=_BYTE)
        under_way.append([_dist.isend(tensor, peer, tag=_BYTES) for peer in peers])
        if len(under_way) > _AHEAD:
            _finish(under_way.pop(0))
    for works in under_way:
        _finish(works)


def receive_chunks(chunks: Sequence[memoryview], source: int) -> Iterator[int]:
    """Fill chunk after chunk with what arrives; yield the number of each."""
    coming: list[Any] = []
    for at in range(len(chunks)):
        for later in chunks[at + len(coming) : at + 1 + _AHEAD]:
            room = torch.frombuffer(later, dtype=_BYTE)
            coming.append(_dist.irecv(room, source, tag=_BYTES))
        _finish([coming.pop(0)])
        yield at


def _finish(works: Iterable[Any]) -> None:
    for work in works:
        work.wait()


# Bytes.


def chunks_of(view: memoryview) -> list[memoryview]:
    """Return bytes in chunks of one size, but for the last."""
    return [view[at : at + CHUNK] for at in range(0, len(view), CHUNK)]


def hash_of(chunk: memoryview) -> int:
    """Return a hash of the bytes, as a number that fits into a tensor of words."""
    return xxhash.xxh3_64_intdigest(chunk) - _HALF


def hashes_of(chunks: Sequence[memoryview]) -> list[int]:
    """Return the hash of each."""
    return at_once(hash_of, chunks, PART)


class Digest:
    """The hash of bytes that come in parts."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, part: memoryview) -> None:
        """Add the next part."""
        self._hash.update(part)

    @property
    def value(self) -> int:
        """Return what `hash_of` is of all of it."""
        return self._hash.intdigest() - _HALF


def at_once(do: Callable[[T], U], parts: Sequence[T], most: int) -> list[U]:
    """Call a function for several parts at once, and return the results."""
    threads = min(most, len(parts), os.cpu_count() or 1)
    if threads <= 1:
        return [do(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return [done.result() for done in [pool.submit(do, part) for part in parts]]


def fresh(size: int) -> memoryview:
    """Return new memory, in large pages where there are: most of the time goes into new pages."""
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # no such pages
        room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    flat: Any = tensor.detach().reshape(-1).view(_BYTE).numpy()
    return memoryview(flat)


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
            raise _Odd(value, f"{type(value).__qualname__} is not a plain tensor")
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
        raise _Odd(value, f"{type(value).__qualname__} is not a tensor, plain value or container")

    def _numpy(self, value: Any) -> Any:
        if value.dtype.kind not in "biufc":
            raise _Odd(value, f"numpy's {value.dtype} is not a number")
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
