"""The entry in the generation's store that decides a command: whoever writes first, wins.

All ranks of a generation see the same entry, so they agree whoever dies. A file is made complete
under another name and linked to its own, which the kernel does for one only and without a lock:
a rank that is stopped in the middle keeps nobody from deciding.
"""

import contextlib
import os
import sys
import threading
import urllib.parse
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from torchloom.errors import Failure

ABORT = "abort"
_COMMIT = "commit "
_FILE, _TCP = "file://", "tcp://"
_PATIENCE = timedelta(seconds=2)  # for a store process that does not answer


class NoStore(Failure):
    """The ranks of this job have nothing in common to agree in."""

    code = "no_store"


class Outcomes(Protocol):
    """First-writer-wins entries, the same for all ranks of a generation."""

    def first(self, key: str, value: str) -> str:
        """Write the value unless there is one; return what is there now."""
        ...


class OwnOutcomes:
    """For a process that is alone."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._lock = threading.Lock()

    def first(self, key: str, value: str) -> str:
        with self._lock:
            return self._entries.setdefault(key, value)


class FileOutcomes:
    """For ranks of one host: a file an entry, beside the file they met in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def first(self, key: str, value: str) -> str:
        entry = self._folder / urllib.parse.quote(key, safe="")
        partial = self._folder / f".{os.getpid()}-{threading.get_ident()}"
        partial.write_text(value)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(partial, entry)
        finally:
            partial.unlink()
        return entry.read_text()


class TcpOutcomes:
    """For ranks of several hosts: torch's store, over a connection of our own."""

    def __init__(self, host: str, port: int, generation: int) -> None:
        torch_distributed: Any = sys.modules["torch.distributed"]
        self._store = torch_distributed.TCPStore(host, port, is_master=False, timeout=_PATIENCE)
        self._prefix = f"loom/{generation}/"

    def first(self, key: str, value: str) -> str:
        found: bytes = self._store.compare_set(self._prefix + key, "", value)
        return found.decode()


def open_outcomes(store: str, world_size: int, generation: int) -> Outcomes:
    """Return the store at this address; may take its time, so never in the training thread."""
    if store.startswith(_FILE):
        return FileOutcomes(Path(f"{store.removeprefix(_FILE)}.outcomes"))
    if store.startswith(_TCP):
        return _connected(*_address(store), generation)
    if world_size > 1:
        raise NoStore("the ranks have no store to agree in; start them with `loom launch`")
    return OwnOutcomes()


def to_text(effective: int | None) -> str:
    """Return an outcome as the store has it: `abort`, or `commit 412`."""
    return ABORT if effective is None else f"{_COMMIT}{effective}"


def from_text(text: str) -> int | None:
    """Return the step of a commit, or None for an abort."""
    return int(text.removeprefix(_COMMIT)) if text.startswith(_COMMIT) else None


def _address(store: str) -> tuple[str, int]:
    host, _, port = store.removeprefix(_TCP).rpartition(":")
    return host.strip("[]"), int(port)


def _connected(host: str, port: int, generation: int) -> Outcomes:
    if "torch.distributed" not in sys.modules:
        raise NoStore("ranks of several hosts agree through torch's store, and torch is not loaded")
    try:
        return TcpOutcomes(host, port, generation)
    except RuntimeError as error:
        raise NoStore(f"the store at {host}:{port} does not answer: {error}") from error
