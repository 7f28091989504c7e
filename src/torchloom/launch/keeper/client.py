"""The agent's end of the keeper: find the job's, or make one, and order what to start."""

import contextlib
import importlib.util
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torchloom.launch.host import descendants, sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.keeper import zygote_client
from torchloom.launch.keeper.fingerprint import locate, probe
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.protocol import (
    FROM_KEEPER,
    BuryChild,
    ChildrenLeft,
    EndKeeper,
    KeeperHello,
    KeeperRequest,
    LaunchMessage,
    ReplicaOrder,
    SignalChild,
    SpawnRequest,
    SweepJob,
    decoding,
)
from torchloom.launch.variables import STORE_VARIABLE, UPLINK_VARIABLE
from torchloom.launch.wire import Connection

COLD: Final = "cold"  # the keeper is to be a plain fork
_START = Path(__file__).parents[2] / "worker" / "start.py"  # what runs a program in a fresh one
_NO_GAIN = "no zygote is started for a program that does not name torch"
_TELLING = (b"torch", b"lightning", b"transformers", b"accelerate")
_MOST_FDS = 1 << 20
_SHUTDOWN_LIMIT = 10.0  # seconds for a keeper to end what it has


class ForkChoice:
    """Decides once, for the first command of a job, whether its keeper is a zygote's fork."""

    def __init__(self) -> None:
        self._awaited: zygote_client.ZygoteClient | None = None
        self.is_warm = False
        self.said = COLD

    def keeper(self, request: KeeperRequest, order: ReplicaOrder) -> socket.socket | str | None:
        """Return the connection to a warm keeper, COLD, or nothing while its zygote comes up."""
        command = PythonCommand.parse(order.argv)
        zygote = self._awaited or zygote_client.find(command, request.env, order.cwd)
        if isinstance(zygote, zygote_client.Cold) or command is None:
            return self._cold(zygote.why if isinstance(zygote, zygote_client.Cold) else "")
        if self._awaited and zygote.is_coming():
            return None
        found = zygote.keeper(request)
        if isinstance(found, socket.socket):
            self.is_warm = True
            self.said = "cold: a zygote was started for it" if self._awaited else "warm"
            return found
        if not is_worth_it(command, order.cwd, order.grouped):
            return self._cold(_NO_GAIN)
        if self._awaited is None:
            zygote.start()
            if order.grouped:  # one import for all ranks is faster than one for each
                self._awaited = zygote
                return None
        return self._cold(found.why)

    def words(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Sequence[str]:
        """Return what is executed: by an entry of ours where ranks meet or are watched."""
        is_seen = env.get(UPLINK_VARIABLE) and env.get("LOOM_ATTACH") != "0"
        if self.is_warm or not (is_seen or STORE_VARIABLE in env):
            return argv
        command = PythonCommand.parse(argv)
        if command is None or not _has_ours(command, env, cwd):
            return argv
        return command.through(str(_START))

    def _cold(self, why: str) -> str:
        self.said = f"{COLD}: {why}" if why else COLD
        return COLD


def is_worth_it(command: PythonCommand, cwd: str, grouped: bool) -> bool:
    """Tell whether a zygote would pay: a program that speaks of torch, or a group's module."""
    if command.what != "file":
        return grouped
    try:
        text = Path(cwd, command.target).read_bytes()
    except OSError:
        return False
    return any(word in text for word in _TELLING)


def _has_ours(command: PythonCommand, env: Mapping[str, str], cwd: str) -> bool:
    """Tell whether an interpreter has both torch and torchloom."""
    interpreter = locate(command.interpreter, env, cwd)
    if interpreter is None:
        return False
    if interpreter == os.path.abspath(sys.executable):
        return importlib.util.find_spec("torch") is not None
    missing = probe(interpreter, command.flags, env).missing
    return not {"torch", "torchloom"} & set(missing)


class KeeperLink:
    """The one keeper of a job on this host, there or not."""

    def __init__(
        self,
        share: JobShare,
        selector: selectors.BaseSelector,
        on_message: Callable[[LaunchMessage, list[int]], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._share = share
        self._selector = selector
        self._on_message = on_message
        self._on_gone = on_gone
        self._address = _address(share)
        self._connection: Connection | None = None
        self._left: int | None = 0
        self.number = 0  # of the youngest child
        self.was_found = False
        self.warmth = ""
        self._warmth = ForkChoice()

    @property
    def is_warm(self) -> bool:
        """Tell whether orders become forks of an interpreter that has torch."""
        return self._warmth.is_warm

    @property
    def is_gone(self) -> bool:
        return self._connection is None

    def find(self) -> bool:
        """Call the keeper that an agent before has made; it says hello if it is there."""
        try:
            self._connect(sockets.connect(self._address))
        except OSError:
            return False
        self.was_found = True
        return True

    def prepare(self, order: ReplicaOrder, env: Mapping[str, str], orphan_limit: float) -> bool:
        """See to it that there is a keeper, as warm as the command allows; false: not yet."""
        if self._connection is not None:
            if self.is_warm:
                self.warmth = "warm"  # whatever the first start had to wait for
            return True
        request = KeeperRequest(
            job=self._share.app_id,
            node=self._share.node,
            address=str(self._address),
            orphan_limit=orphan_limit,
            argv=order.argv,
            env=env,
            cwd=order.cwd,
        )
        keeper = self._warmth.keeper(request, order)
        if keeper is None:
            return False
        if isinstance(keeper, str):
            keeper = _cold_keeper(self._share, self._address, orphan_limit)
        self.warmth = self._warmth.said
        self._connect(keeper)
        return True

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        given: list[int],
        kept: Sequence[int] = (),
        note: Mapping[str, Any] | None = None,
        terminal: bool = False,
    ) -> int:
        """Order a process; return its number. The given descriptors are closed here."""
        self.number += 1
        order = SpawnRequest(
            number=self.number,
            argv=tuple(self._warmth.words(argv, env, cwd)),
            env=env,
            cwd=cwd,
            given=len(given),
            note=note or {},
            terminal=terminal,
            warm=self._warmth.is_warm,
        )
        self._send(order, [*given, *kept])
        for fd in given:
            os.close(fd)
        return self.number

    def signal(self, number: int, signum: int) -> None:
        self._send(SignalChild(number, int(signum)))

    def bury(self, number: int) -> None:
        """Have the keeper forget a child and end what it left running."""
        self._send(BuryChild(number))

    def sweep(self, signum: int) -> None:
        """Signal all that is left of the job here, and ask how much that is."""
        self._left = None
        self._send(SweepJob(int(signum)))

    @property
    def has_more(self) -> bool:
        """Tell whether anything may be left."""
        return self._connection is not None and self._left != 0

    def look_again(self) -> None:
        """Ask what is left by now, unless an answer is still on its way."""
        if self._left:
            self.sweep(0)

    def end(self) -> None:
        """Have the keeper kill all it has, and leave."""
        self._send(EndKeeper())

    def _connect(self, channel: socket.socket) -> None:
        handle = decoding(FROM_KEEPER, self._handle)
        self._connection = Connection(channel, self._selector, handle, self._gone)

    def _handle(self, message: LaunchMessage, fds: list[int]) -> None:
        if isinstance(message, ChildrenLeft):
            self._left = message.count
            return
        if isinstance(message, KeeperHello) and self.was_found and message.warm:
            self._warmth.is_warm = True
            self.warmth = "warm"
        self._on_message(message, fds)

    def _gone(self) -> None:
        self._connection = None
        self._on_gone()

    def _send(self, message: LaunchMessage, fds: Sequence[int] = ()) -> None:
        if self._connection is not None:
            self._connection.send(message, fds)


def _cold_keeper(share: JobShare, address: Path, orphan_limit: float) -> socket.socket:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        _become_keeper(share, theirs, address, orphan_limit)
    theirs.close()
    return ours


def kill_share(share: JobShare) -> None:
    """End all of an app on this node: its keeper first, so that nothing more is started."""
    selector = selectors.DefaultSelector()
    ended: list[bool] = []
    with contextlib.suppress(OSError):
        channel = sockets.connect(_address(share))
        keeper = Connection(channel, selector, lambda *_: None, lambda: ended.append(True))
        keeper.send(EndKeeper())
        deadline = time.monotonic() + _SHUTDOWN_LIMIT
        while not ended and time.monotonic() < deadline:
            for key, ready in selector.select(_SHUTDOWN_LIMIT):
                key.data(ready)
    descendants.kill_all(share, os.getpid())
    _address(share).unlink(missing_ok=True)  # a keeper that was killed could not


def _address(share: JobShare) -> Path:
    """Return where a job's keeper on this node takes calls; /tmp may be another's too."""
    return sockets.socket_path(f"{share.app_id}.{share.node}.keeper")


def _become_keeper(share: JobShare, agent: socket.socket, address: Path, limit: float) -> None:
    """Turn this fork of the agent into the keeper; nothing of the agent stays open in it."""
    code = 1
    try:
        from torchloom.launch.keeper.service import Keeper

        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        fd = os.dup2(agent.detach(), 3, inheritable=False)
        os.closerange(4, _MOST_FDS)
        Keeper(share, socket.socket(fileno=fd), address, None, limit).serve()
        code = 0
    finally:
        os._exit(code)
