"""Values that all ranks agree on during set-up, also for a rank that joins later."""

import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchloom.errors import UserError
from torchloom.worker.dist.comm import TorchCollectives
from torchloom.worker.recovery import standin


def together() -> bool:
    """Tell whether there is a process group with other ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(number: int) -> list[int]:
    """Return every rank's number, in rank order. A collective call."""
    if not together():
        return [number]
    numbers = TorchCollectives().allgather(torch.tensor([number], dtype=torch.int64))
    return [int(each.item()) for each in numbers]


def backend() -> str:
    """Return the backend of the process group; empty without other ranks."""
    return str(dist.get_backend()) if together() else ""


class BadBroadcast(UserError):
    """The value cannot be broadcast."""

    code = "cannot_tell"


class BroadcastValues:
    """The values of `run.broadcast`, in the order of the calls.

    They are kept in a folder for a later process of this rank on this node, which runs the same
    set-up without its peers.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._count = 0

    def share(self, value: Any) -> tuple[Any, str]:
        """Return rank 0's value; for a rank that joins later, also why it is missing, if so."""
        self._count += 1
        if standin.is_on():
            return self._kept_value(value)
        if not together():
            return value, ""
        text = _shared(value)
        if self._folder is not None:
            self._keep(self._folder, text)
        return _read(text), ""

    def _kept_value(self, value: Any) -> tuple[Any, str]:
        path = self._folder / self._name() if self._folder is not None else None
        if path is None or not path.exists():
            return value, f"the value of call {self._count} of run.broadcast is not on this node"
        return _read(path.read_bytes()), ""

    def _keep(self, folder: Path, text: bytes) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f"{self._name()}.{os.getpid()}"
        partial.write_bytes(text)
        partial.replace(folder / self._name())

    def _name(self) -> str:
        return f"told-{self._count}"


def _shared(value: Any) -> bytes:
    """Return rank 0's value as bytes. A collective call."""
    text = _written(value) if torch.distributed.get_rank() == 0 else b""
    size = gather(len(text))[0]
    room: Tensor = torch.frombuffer(bytearray(text or bytes(size)), dtype=torch.uint8)
    return bytes(TorchCollectives().broadcast(room).cpu().numpy().data)


def _written(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        _read(file.getvalue())
    except Exception as error:  # its objects may raise anything when they are pickled
        what = f"run.broadcast takes plain values and tensors, not a {type(value).__name__}"
        raise BadBroadcast(f"{what}: {error}") from error
    return file.getvalue()


def _read(text: bytes) -> Any:
    return torch.load(io.BytesIO(text), weights_only=True)
