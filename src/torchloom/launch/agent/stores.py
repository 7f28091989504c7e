"""Where the ranks of a generation meet: a file on one host, a store process over hosts.

Every one has its own, so nothing of a dead one is found by the next.
"""

import contextlib
import importlib.util
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.host import shared_memory, sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.keeper.client import KeeperLink
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.protocol import ReplicaOrder
from torchloom.launch.variables import (
    AGENT_VARIABLE,
    JOB_VARIABLE,
    NODE_VARIABLE,
    STORE_VARIABLE,
)
from torchloom.specs.dataclass import dataclass

_FILE = "file://"
_WANTED, _HOSTED = ".wanted", ".hosted"  # beside the file: a pipe to ask for a store; one serves
_SERVE = ("-m", "torchloom.worker.process.store", "3")


@dataclass(frozen=True, slots=True)
class StorePort:
    """Where a group meets over hosts; `hosted` by a process of ours, else rank 0 must serve."""

    number: int
    hosted: bool


class Stores:
    """The stores of one job on this node."""

    def __init__(
        self, share: JobShare, keeper: KeeperLink, selector: selectors.BaseSelector
    ) -> None:
        self._share = share
        self._keeper = keeper
        self._selector = selector
        self._pipes: dict[str, tuple[int, int]] = {}  # by role: its attempt, and what is read
        self._ports: dict[tuple[str, int], int] = {}  # by role and attempt
        self._jax: dict[tuple[str, int], int] = {}
        self._processes: dict[int, tuple[str, int]] = {}
        self._hosted: dict[tuple[str, int], StorePort] = {}  # by role and generation

    def settle(self, order: ReplicaOrder, variables: MutableMapping[str, str]) -> str:
        """Return the address of an attempt's store, and fill in the port where one host's meet."""
        if not order.grouped:
            return ""
        if not order.file_store:
            hosted = variables["TORCHELASTIC_USE_AGENT_STORE"] == "True"
            at = f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"
            return f"tcp://{at}" if hosted else ""
        place = (order.role, order.attempt)
        if place not in self._ports:
            self._ports[place], self._jax[place] = sockets.free_port(), sockets.free_port()
        variables["MASTER_PORT"] = str(self._ports[place])
        variables["JAX_COORDINATOR_ADDRESS"] = f"{variables['MASTER_ADDR']}:{self._jax[place]}"
        folder = shared_memory.make(self._share.app_id)
        # no room for a file: rank 0 serves at the port
        return f"file://{folder}/{order.role}-{order.attempt}" if folder else ""

    def offer(self, order: ReplicaOrder, env: Mapping[str, str]) -> None:
        """Serve at the address of ranks that meet in a file as soon as one of them wants a store.

        Until then nothing listens there, so a program may do it itself. `env` is a rank's.
        """
        path = env.get(STORE_VARIABLE, "").removeprefix(_FILE)
        if not (order.grouped and order.file_store and path):
            return
        attempt, pipe = self._pipes.get(order.role, (-1, -1))
        if attempt == order.attempt:
            return
        self._withdraw(order.role)
        self._end_older(order.role, order.generation)
        with contextlib.suppress(OSError):  # then only the file is there
            os.mkfifo(path + _WANTED, 0o600)
            pipe = os.open(path + _WANTED, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._pipes[order.role] = (order.attempt, pipe)
            self._selector.register(
                pipe, selectors.EVENT_READ, lambda _ready: self._wanted(order, dict(env), path)
            )

    def _wanted(self, order: ReplicaOrder, env: Mapping[str, str], path: str) -> None:
        """Serve, unless the program itself listens at its address."""
        self._withdraw(order.role)
        try:
            listener = wire.listen_on(env["MASTER_ADDR"], int(env["MASTER_PORT"]))
        except OSError:
            return
        if importlib.util.find_spec("torch") is None:
            listener.close()
            return
        Path(path + _HOSTED).touch(0o600)
        self._serve(order, env, listener)

    def _withdraw(self, role: str) -> None:
        if (known := self._pipes.get(role)) is not None and known[1] >= 0:
            self._selector.unregister(known[1])
            os.close(known[1])
            self._pipes[role] = (known[0], -1)

    def file_of(self, role: str, generation: int) -> str:
        """Return where a later generation of an attempt meets on this host; nothing: nowhere."""
        folder = shared_memory.make(self._share.app_id)
        return f"file://{folder}/{role}-g{generation}" if folder else ""

    def host(self, order: ReplicaOrder, env: Mapping[str, str], address: str) -> StorePort:
        """Start a generation's store at an address of this host, once; `env` is its ranks'."""
        if found := self._hosted.get((order.role, order.generation)):
            return found
        self._end_older(order.role, order.generation)
        listener = wire.listen_on(address)
        port = listener.getsockname()[1]
        if importlib.util.find_spec("torch") is None:
            listener.close()
            return StorePort(port, hosted=False)
        name = self._serve(order, env, listener)
        self._hosted[name] = StorePort(port, hosted=True)
        return self._hosted[name]

    def _serve(
        self, order: ReplicaOrder, env: Mapping[str, str], listener: socket.socket
    ) -> tuple[str, int]:
        """Start a store process on a socket."""
        argv, own = self._command(order, env)
        read_end, write_end = os.pipe()  # the keeper holds the other end: it closes with it
        given = [read_end, os.open(os.devnull, os.O_WRONLY), os.dup(2), listener.detach()]
        number = self._keeper.start(argv, own, os.sep, given, [write_end])
        os.close(write_end)
        name = self._processes[number] = (order.role, order.generation)
        return name

    def _command(
        self, order: ReplicaOrder, env: Mapping[str, str]
    ) -> tuple[Sequence[str], dict[str, str]]:
        """Return what serves: by a warm keeper started as its ranks are, else our own Python."""
        own = {JOB_VARIABLE: self._share.app_id, NODE_VARIABLE: self._share.node}
        command = PythonCommand.parse(order.argv) if self._keeper.is_warm else None
        if command is not None:
            return (command.interpreter, *command.flags, *_SERVE), dict(env) | own
        inherited = dict(settings.environment()) | own
        inherited.pop(AGENT_VARIABLE, None)
        return (sys.executable, "-P", *_SERVE), inherited

    def exited(self, number: int) -> None:
        """Forget a store that ended."""
        if name := self._processes.pop(number, None):
            self._hosted.pop(name, None)
            self._keeper.bury(number)

    def close(self) -> None:
        """Leave no file behind; processes end with the keeper."""
        for role in list(self._pipes):
            self._withdraw(role)
        shared_memory.remove(self._share.app_id)

    def _end_older(self, role: str, generation: int) -> None:
        for number, (other, before) in list(self._processes.items()):
            if other == role and before < generation:
                self._keeper.signal(number, signal.SIGKILL)


def clear(share: JobShare) -> None:
    """Remove what a job left on a node in shared memory and among the sockets."""
    shared_memory.remove(share.app_id)
    private = settings.runtime_dir() / share.app_id
    shutil.rmtree(private / share.node, ignore_errors=True)
    with contextlib.suppress(OSError):  # there is none, or another node's is in it
        private.rmdir()
