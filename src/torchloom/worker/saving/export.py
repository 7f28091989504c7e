"""Export the model of a checkpoint to a `.pt` or `.safetensors` file."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchloom.errors import Failure, MissingExtra, UserError
from torchloom.worker.saving.inspection import Contents, DividedTensor, read_tensor


class NoSuchType(UserError):
    """The format has no such element type."""

    code = "no_such_type"

    def __init__(self, name: str, kind: torch.dtype) -> None:
        super().__init__(f"{name} is {kind}, which safetensors cannot hold; export a .pt file")


def write_safetensors(state: Mapping[str, Any], facts: Mapping[str, str], path: Path) -> None:
    """Write tensors to a file; values that are not tensors become JSON in its metadata."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        words = ("a .safetensors file", "safetensors", "safetensors", "export a .pt file")
        raise MissingExtra(*words) from None
    tensors, values = taken_apart(state)
    more = {"values": json.dumps(values, default=repr)} if values else {}
    try:
        save_file(_separate(tensors), path, {"format": "pt", **facts, **more})
    except KeyError as error:  # the package looks the type up in a table
        name = next(name for name, tensor in tensors.items() if tensor.dtype == error.args[0])
        raise NoSuchType(name, error.args[0]) from None
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return dense tensors of which no two share memory: the package refuses those that do."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        found[name] = whole.clone() if whole.data_ptr() in seen else whole
        seen.add(whole.data_ptr())
    return found


# The types of safetensors, by those of torch.
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
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_streamed(state: Mapping[str, Any], facts: Mapping[str, str], path: Path) -> None:
    """Write a safetensors file of which memory holds one tensor at a time."""
    tensors, values = taken_apart(state)
    about = {"format": "pt", **facts}
    header: dict[str, Any] = {
        "__metadata__": about | ({"values": json.dumps(values, default=repr)} if values else {})
    }
    at = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor = tensors[name]
        if tensor.dtype not in _TYPES:
            raise NoSuchType(name, tensor.dtype)
        end = at + math.prod(tensor.shape) * tensor.dtype.itemsize
        kind = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**kind, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in list(header)[1:]:
            whole = read_tensor(tensors[name]).detach().cpu().contiguous()
            file.write(whole.reshape(-1).view(torch.uint8).numpy().data)


def taken_apart(state: Any, path: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors and the other values of a nested state, by dotted names."""
    if isinstance(state, Tensor | DividedTensor):
        return {path: state}, {}
    if isinstance(state, Mapping):
        items = list(state.items())
    elif isinstance(state, list | tuple):
        items = list(enumerate(state))
    else:
        return {}, {path: state}
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for key, item in items:
        found = taken_apart(item, f"{path}.{key}" if path else str(key))
        tensors |= found[0]
        values |= found[1]
    return tensors, values


Write = Callable[[Path], None]


class NothingToExport(UserError):
    """The checkpoint has no model."""

    code = "no_model"

    def __init__(self) -> None:
        super().__init__("the checkpoint has no model: run.wrap(model) is what puts one there")


def export(contents: Contents, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the requested file; return its number of tensors and bytes."""
    models, path = contents.models(), Path(asked["file"])
    if not models:
        raise NothingToExport()
    more = contents.tracked() if asked["optimizer"] else {}
    facts = {"job": asked["job"], "step": str(asked["step"])}
    state = _loadable(_state(models, more), contents.parts is not None and path.suffix != ".pt")
    tensors, _ = taken_apart(state)
    if path.suffix == ".pt":
        write_whole(path, asked["replace"], lambda partial: _write_torch(state, partial))
    elif contents.parts is not None:
        write_whole(path, asked["replace"], lambda file: write_streamed(state, facts, file))
    else:
        write_whole(path, asked["replace"], lambda file: write_safetensors(state, facts, file))
    return {"tensors": len(tensors), "bytes": path.stat().st_size}


def _write_torch(state: Any, path: Path) -> None:
    with open(path, "xb") as file:  # given a path, torch does not raise OSError
        torch.save(state, file)


def _state(models: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of a single model; several states are kept apart by name."""
    if len(models) == 1 and not more:
        (only,) = models.values()
        return dict(only)
    return {**models, **more}


def _loadable(state: Any, is_later: bool = False) -> Any:
    """Return the state with only types that `torch.load(weights_only=True)` accepts.

    With `is_later`, divided tensors are read when they are written.
    """
    if isinstance(state, Mapping):
        return {key: _loadable(item, is_later) for key, item in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_loadable(item, is_later) for item in state)
    if isinstance(state, DividedTensor):
        return state if is_later else state.read()
    if type(state).__module__ == "numpy":
        return torch.from_numpy(state)
    return bytearray(state) if isinstance(state, bytes) else state


def write_whole(path: Path, replace: bool, write: Write) -> None:
    """Write a file atomically; an existing one is kept unless `replace` is set."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with open(partial, "rb") as file:
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
