"""Write the model of a checkpoint into one file that needs nothing of ours to be read."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torchloom.errors import Failure, UserError
from torchloom.worker.inspecting import safetensors
from torchloom.worker.inspecting.contents import Contents

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
    tensors, _ = safetensors.taken_apart(state)
    if path.suffix == ".pt":
        write_whole(path, asked["replace"], lambda file: torch.save(state, file))
    else:
        write_whole(path, asked["replace"], safetensors.writer(state, facts))
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
