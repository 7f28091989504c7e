"""Framed messages over TCP between workers and servers, and how they find each other.

A frame is two lengths, a head in JSON and the bytes of one tensor. A server leaves its address, and
a secret that workers must know, in the folder of the run.
"""

import ctypes
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchloom.errors import Failure
from torchloom.launch.host.identity import host_name
from torchloom.settings import LOOPBACK, runs_dir
from torchloom.worker import environment

_LENGTHS = struct.Struct("!IQ")
_MOST_HEAD = 1 << 20
_POLL = 0.05  # seconds between two looks for the address of a server
_NOTHING = torch.empty(0)

Message = tuple[dict[str, Any], Tensor]


class ConnectionEnded(Failure):
    """The process at the other end is gone."""

    code = "connection_ended"

    def __init__(self, who: str) -> None:
        super().__init__(f"the connection to {who} has ended: its own log says why")


class ServersMissing(Failure):
    """A server did not come up."""

    code = "servers_missing"

    def __init__(self, index: int, seconds: float) -> None:
        super().__init__(
            f"parameter server {index} has not come up within {seconds:g} s: look at its log"
            " (loom logs JOB server)"
        )


class TensorLink:
    """One connection: messages in, messages out."""

    def __init__(self, connection: socket.socket, who: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._who = who

    def send(self, head: Mapping[str, Any], tensor: Tensor = _NOTHING) -> None:
        """Send a head with a tensor of the host."""
        tensor = tensor.detach().contiguous()
        words = json.dumps({**head, "dtype": str(tensor.dtype).partition(".")[2]}).encode()
        try:
            self._socket.sendall(_LENGTHS.pack(len(words), tensor.nbytes) + words)
            if tensor.nbytes:
                self._socket.sendall(_bytes_of(tensor))
        except OSError as error:
            raise ConnectionEnded(self._who) from error

    def receive(self) -> Message:
        """Return the next message; raise ConnectionEnded if there will be none."""
        lengths = bytearray(_LENGTHS.size)
        self._read(memoryview(lengths))
        size, count = _LENGTHS.unpack(lengths)
        if size > _MOST_HEAD:
            raise ConnectionEnded(self._who)
        words = bytearray(size)
        self._read(memoryview(words))
        head: dict[str, Any] = json.loads(words)
        tensor = torch.empty(0, dtype=getattr(torch, head.pop("dtype")))
        tensor = tensor.new_empty(count // tensor.element_size())
        if count:
            self._read(_bytes_of(tensor))
        return head, tensor

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self, view: memoryview) -> None:
        """Fill memory with what comes next."""
        done = 0
        while done < len(view):
            try:
                count = self._socket.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise ConnectionEnded(self._who) from error
            if not count:
                raise ConnectionEnded(self._who)
            done += count


class ServerSocket:
    """The socket of a server, and its address in the folder of the run."""

    def __init__(self, index: int, is_local: bool) -> None:
        self._secret = secrets.token_hex(16)
        host = LOOPBACK if is_local else host_name()
        self._socket = socket.create_server((host, 0))  # never on all addresses
        self._note = _note(index)
        self._note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        port = self._socket.getsockname()[1]
        partial = self._note.with_suffix(".partial")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"host": host, "port": port, "secret": self._secret}, file)
        partial.replace(self._note)

    def accept(self) -> tuple[TensorLink, dict[str, Any]]:
        """Wait for a worker that knows the secret; return its connection and what it says."""
        while True:
            connection, _ = self._socket.accept()
            frames = TensorLink(connection, "a worker")
            try:
                head, _ = frames.receive()
            except (ConnectionEnded, ValueError):
                head = {}
            if hmac.compare_digest(str(head.pop("secret", "")), self._secret):
                return frames, head
            frames.close()

    def close(self) -> None:
        """Close the socket, and remove the address."""
        self._note.unlink(missing_ok=True)
        self._socket.close()


def connect(index: int, hello: Mapping[str, Any], timeout: float) -> TensorLink:
    """Return a connection to a server of this run and attempt, once it is up."""
    until, note = time.monotonic() + timeout, _note(index)
    while True:
        try:
            found = json.loads(note.read_text())
            connection = socket.create_connection((found["host"], found["port"]), timeout=timeout)
            break
        except (OSError, ValueError):
            if time.monotonic() > until:
                raise ServersMissing(index, timeout) from None
            time.sleep(_POLL)
    connection.settimeout(None)
    frames = TensorLink(connection, f"parameter server {index}")
    frames.send({**hello, "secret": found["secret"]})
    return frames


def _note(index: int) -> Path:
    """Return the file with the address of a server; each attempt has its own."""
    job = environment.text(environment.JOB_VARIABLE, "local")
    attempt = environment.text(environment.ATTEMPT_VARIABLE, "0")
    return runs_dir() / job / "servers" / f"{attempt}-{index}.json"


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor of the host."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
