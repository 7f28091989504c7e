"""Write the model of a checkpoint into one file that needs nothing of ours to be read."""

import contextlib
import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from torchloom.errors import Failure, UserError
from torchloom.worker.saving.inspection import Contents

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}
_ALIGNED = 8


class NoSuchType(UserError):
    """The format knows nothing of this type of numbers."""

    code = "no_such_type"

    def __init__(self, name: str, kind: torch.dtype) -> None:
        super().__init__(f"{name} is {kind}, which safetensors cannot hold; export a .pt file")


def writer(state: Mapping[str, Any], facts: Mapping[str, str]) -> Callable[[BinaryIO], None]:
    """Return what writes such a file; values that are no tensors are told among its metadata."""
    tensors, values = taken_apart(state)
    more = {"values": json.dumps(values, default=repr)} if values else {}
    head, order = header(tensors, {"format": "pt", **facts, **more})

    def write(file: BinaryIO) -> None:
        file.write(head)
        for tensor in order:
            file.write(_bytes(tensor))

    return write


def header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, list[Tensor]]:
    """Return the beginning of a file and the order in which its tensors follow."""
    named = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))
    told: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in named:
        if tensor.dtype not in _TYPES:
            raise NoSuchType(name, tensor.dtype)
        end = at + tensor.numel() * tensor.element_size()
        told[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, [tensor for _, tensor in named]


def taken_apart(state: Any, path: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and plain values by their dotted names."""
    if isinstance(state, Tensor):
        return {path: state}, {}
    if isinstance(state, Mapping):
        items = list(state.items())
    elif isinstance(state, list | tuple):
        items = list(enumerate(state))
    else:
        return {}, {path: state}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, item in items:
        found = taken_apart(item, f"{path}.{key}" if path else str(key))
        tensors |= found[0]
        values |= found[1]
    return tensors, values


def _bytes(tensor: Tensor) -> Any:
    whole = tensor.detach().cpu().contiguous()
    count = whole.numel() * whole.element_size()
    if not count:
        return b""
    content = (ctypes.c_char * count).from_address(whole.data_ptr())
    content.tensor = whole  # type: ignore[attr-defined]  # the memory lives as long as this does
    return content


Write = Callable[[BinaryIO], None]


class NothingToExport(UserError):
    """The checkpoint has no model."""

    code = "no_model"

    def __init__(self) -> None:
        super().__init__("the checkpoint has no model: run.wrap(model) is what puts one there")


def export(contents: Contents, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the file that is asked for; return how many tensors and bytes it has."""
    models, path = contents.models(), Path(asked["file"])
    if not models:
        raise NothingToExport()
    more = contents.tracked() if asked["optimizer"] else {}
    facts = {"job": asked["job"], "step": str(asked["step"])}
    state = _loadable(_state(models, more))
    tensors, _ = taken_apart(state)
    if path.suffix == ".pt":
        write_whole(path, asked["replace"], lambda file: torch.save(state, file))
    else:
        write_whole(path, asked["replace"], writer(state, facts))
    return {"tensors": len(tensors), "bytes": path.stat().st_size}


def _state(models: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's own state dict; where there is more in the file, each by its name."""
    if len(models) == 1 and not more:
        (only,) = models.values()
        return dict(only)
    return {**models, **more}


def _loadable(state: Any) -> Any:
    """Return the same with nothing in it that `torch.load(weights_only=True)` would not take."""
    if isinstance(state, Mapping):
        return {key: _loadable(item) for key, item in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_loadable, state))
    if type(state).__module__ == "numpy":
        return torch.from_numpy(state)
    return bytearray(state) if isinstance(state, bytes) else state


def write_whole(path: Path, replace: bool, write: Write) -> None:
    """Have a file whole or not at all; one that is there is kept unless it may be replaced."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(partial, path)
        else:
            os.link(partial, path)
    except FileExistsError:
        raise UserError(f"{path} is there already; --yes replaces it") from None
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
