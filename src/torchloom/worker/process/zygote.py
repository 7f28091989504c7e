"""The warm interpreter: `python -m torchloom.worker.process.zygote CALLED ADDRESS CACHE LOCK`.

It has imported torch and what training imports lazily, holds nothing of the user's, has one thread
and never touched CUDA; so a fork of it is a rank at once. It makes keepers, which make the ranks,
and leaves after an hour without any.
"""

import contextlib
import ctypes
import gc
import itertools
import math
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from torchloom.launch.agent import stores  # noqa: F401
from torchloom.launch.host import sockets
from torchloom.launch.host.descendants import JobShare, reap
from torchloom.launch.host.sockets import SignalPipe
from torchloom.launch.keeper import fingerprint, spawn, zygote_client
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.keeper.service import Keeper
from torchloom.launch.keeper.spawn import SpawnOrder
from torchloom.launch.protocol import (
    TO_ZYGOTE,
    FileCheck,
    KeeperRequest,
    LaunchMessage,
    ZygoteBusy,
    ZygoteCold,
    ZygoteLeave,
    ZygoteWarm,
    decode,
)
from torchloom.launch.variables import AGENT_VARIABLE, NODE_VARIABLE
from torchloom.launch.wire import BadFrame
from torchloom.unix import receive_message, same_user, send_message
from torchloom.worker.process import fork_cleanup, preload, program, rendezvous  # noqa: F401

_MADV_COLLAPSE = 25  # Linux 6.1; older kernels say no, and nothing is lost
_HUGE = 2 << 20
_IDLE = 3600.0
_PAUSE = 1.0  # seconds without a caller after which there is time for the memory
_LOOK = 30.0  # seconds between looks at whether the socket is still ours
_REQUEST_LIMIT = 5.0
_TOGETHER = 0.1  # seconds in which ranks are started by one look at the files
_AT_ONCE = 100  # files, 0.3 ms: an order that comes meanwhile waits for no more
_FIRST_FREE, _MOST_FDS = 3, 1 << 20


def collapse() -> int:
    """Collapse all private anonymous memory of this process; return how many bytes were."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None)
    done = 0
    for start, end in _anonymous():
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for place in range(start, end, _HUGE):
            if libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE) == 0:
                done += _HUGE
    return done


def _anonymous() -> list[tuple[int, int]]:
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            places, mode, _, _, inode, *name = line.split()
            if mode.startswith("rw-p") and inode == "0" and name in ([], ["[heap]"]):
                start, _, end = places.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


_Stamp = tuple[int, ...]  # when a file was changed, its size, and when its status was


class CannotLive(Exception):
    """This interpreter must not be forked; the text says why."""


class ZygoteServer:
    """Serves one socket: a request makes a fork that keeps a job's ranks."""

    def __init__(self, address: Path, lock: int, idle: float, files: dict[str, _Stamp]) -> None:
        self._address = address
        self._lock = lock
        self._idle = idle
        self._used = time.monotonic()
        self._keepers: dict[int, str] = {}  # by process: the job whose ranks it has
        self._look = _PAUSE
        self._files = files
        self._seen_for: str | None = None  # the run for which the files were looked at already
        self._signals = SignalPipe(more=(signal.SIGTERM, signal.SIGQUIT))
        self._listener = sockets.listen(address)
        self._inode = address.stat().st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_caller)
        self._leaving = False

    def serve(self) -> None:
        """Fork keepers until idle for too long, outdated, or asked to leave."""
        while not self._leaving and self._is_wanted():
            ready = self._selector.select(min(self._look, self._idle))
            for key, _ in ready:
                key.data()
            if not ready and self._look == _PAUSE:  # no request waits: use the time
                collapse()
                self._look = _LOOK
        self._retire()

    def _retire(self) -> None:
        """Make room for a successor before a client is sent to look for one."""
        self._leaving = True
        if self._lock >= 0:
            if self._owns_address():
                self._address.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def _is_wanted(self) -> bool:
        if self._keepers:
            self._used = time.monotonic()
        return time.monotonic() - self._used < self._idle and self._owns_address()

    def _owns_address(self) -> bool:
        try:
            return self._address.stat().st_ino == self._inode
        except OSError:
            return False

    def _on_signals(self) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                self._reap()
            else:
                self._leaving = True

    def _reap(self) -> None:
        for pid, _ in reap():
            self._keepers.pop(pid, None)

    def _on_caller(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        with channel, contextlib.suppress(OSError):  # the client has gone
            if same_user(channel):
                channel.settimeout(_REQUEST_LIMIT)
                self._serve_one(channel)

    def _serve_one(self, channel: socket.socket) -> None:
        try:
            if (request := receive_message(channel)) is not None:
                self._answer(channel, decode(request, TO_ZYGOTE))
        except (BadFrame, ValueError):
            if _changed(self._files):  # a newer torchloom speaks otherwise
                self._retire()

    def _answer(self, channel: socket.socket, request: LaunchMessage) -> None:
        match request:
            case FileCheck():
                self._seen_for = None if _changed(self._files) else request.alert
            case KeeperRequest():
                self._keep(channel, request)
            case ZygoteLeave():
                self._reap()
                if request.if_idle and self._keepers:
                    send_message(
                        channel, ZygoteBusy(tuple(sorted(self._keepers.values()))).to_wire()
                    )
                else:
                    self._retire()
            case _:
                raise BadFrame

    def _keep(self, channel: socket.socket, request: KeeperRequest) -> None:
        _check_request(request)
        self._used = time.monotonic()
        with contextlib.suppress(OSError):
            os.utime(self._address)  # the next run alerts the zygote that was used last
        if why := self._cold_because(request):
            send_message(channel, ZygoteCold(why).to_wire())
            return
        send_message(channel, ZygoteWarm(os.getpid()).to_wire())
        pid = os.fork()
        if pid == 0:
            self._become_keeper(channel, request)
        self._keepers[pid] = request.job

    def _cold_because(self, request: KeeperRequest) -> str:
        if (threads := len(os.listdir("/proc/self/task"))) != 1:
            self._retire()
            return f"the zygote has {threads} threads"
        is_seen = self._seen_for is not None and self._seen_for == request.alert
        self._seen_for = None  # once: whatever comes later may come after an edit
        if not is_seen and (changed := _changed(self._files)):
            self._retire()
            return _has_changed(changed)
        return _why_cold(request.argv, request.env, request.cwd)

    def _become_keeper(self, channel: socket.socket, request: KeeperRequest) -> NoReturn:
        code = 1
        try:
            os.setsid()
            agent = self._close_all_but(channel)
            shown = {AGENT_VARIABLE: request.job, NODE_VARIABLE: request.node}
            spawn.show(("loom-keeper", request.job), shown)
            address, limit = Path(request.address), request.orphan_limit
            share = JobShare(request.job, request.node)
            Keeper(share, agent, address, ZygoteForks(self._files), limit).serve()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _close_all_but(self, channel: socket.socket) -> socket.socket:
        """Leave nothing of the zygote open in a keeper, the lock above all."""
        self._selector.close()
        self._listener.detach()  # its number must not be closed later: it will be another's
        fd = os.dup2(channel.detach(), _FIRST_FREE, inheritable=False)
        os.closerange(_FIRST_FREE + 1, _MOST_FDS)
        return socket.socket(fileno=fd)


def _check_request(request: KeeperRequest) -> None:
    """Raise BadFrame for what a keeper could not be made of: a fork must not find that out."""
    texts = [request.job, request.node, request.address, request.cwd]
    texts += [*request.argv, *request.env, *request.env.values()]
    if any("\0" in text for text in texts) or not math.isfinite(request.orphan_limit):
        raise BadFrame


class ZygoteForks:
    """The forks of a keeper: none may run a program when a file has changed since it was imported.

    What such a rank imports by itself would be of another version than what it was forked with.
    After an exit the keeper looks at the files at once, while others decide what follows.
    """

    def __init__(self, files: dict[str, _Stamp]) -> None:
        self._files = files
        self._unseen = iter(files.items())  # what the present look has left
        self._looked = time.monotonic()  # the zygote has, for the keeper
        self._changed = ""

    @property
    def are_known(self) -> bool:
        """Tell whether the files were looked at a moment ago."""
        return bool(self._changed) or time.monotonic() - self._looked <= _TOGETHER

    def forget(self) -> None:
        """Begin to look at the files from the first one; a file that has changed stays so."""
        self._unseen = iter(self._files.items())
        self._looked = -math.inf

    def look_ahead(self) -> bool:
        """Look at some more files; tell whether some are left."""
        return not self.are_known and self._look(_AT_ONCE)

    def _look(self, most: int | None = None) -> bool:
        """Look at so many more files, or at all that are left; tell whether some are left."""
        some = dict(itertools.islice(self._unseen, most))
        self._changed = _changed(some)
        if some and most is not None and not self._changed:
            return True
        self._unseen, self._looked = iter(self._files.items()), time.monotonic()
        return False

    def why_cold(self, order: SpawnOrder) -> str:
        """Return why an order's program is executed by a keeper that could fork it, if so."""
        if not self.are_known:
            self._look()
        if self._changed:
            return _has_changed(self._changed)
        try:
            return _why_cold(order.argv, order.env, order.cwd)
        except OSError:  # no such folder: its start there fails with the reason
            return ""

    def run(self, order: SpawnOrder, verdict: int) -> NoReturn:
        """Become the program of an order; what is not Python is executed."""
        command = PythonCommand.parse(order.argv)
        if command is None:
            os.execvpe(order.argv[0], list(order.argv), dict(order.env))
        try:
            program.become(command, order.env, verdict)
        except BaseException:  # a fault of ours: the log of the rank is the place to say so
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)


def _has_changed(path: str) -> str:
    return f"{path} has changed since it was imported"


def _why_cold(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    command = PythonCommand.parse(argv)
    if command is None:
        return "not a Python program"
    with contextlib.chdir(cwd):
        return fork_cleanup.cold_because(command, env) or ""


def main(arguments: list[str]) -> None:
    """Detach, import, listen."""
    interpreter, address, cache, lock = arguments
    if os.fork():
        os._exit(0)  # the process that started us has no child to wait for
    os.setsid()
    if not sys.flags.safe_path:
        del sys.path[0]
    excuse = zygote_client.excuse_path(Path(address))
    began = time.time_ns()
    try:
        idle = float(os.environ.get(zygote_client.IDLE_VARIABLE) or _IDLE)
        fork_cleanup.remember(_origin(interpreter, Path(cache)))
        _check()
    except Exception as error:  # whatever it is, the next client gets it as the reason
        traceback.print_exc()
        excuse.write_text(str(error) or type(error).__name__)
        return
    excuse.unlink(missing_ok=True)
    fork_cleanup.shed()
    gc.collect()
    gc.freeze()
    files = _stamps()
    times = (changed for stamp in files.values() for changed in (stamp[0], *stamp[2:]))
    if not any(began < changed <= time.time_ns() for changed in times):
        files |= _packages()
        ZygoteServer(Path(address), int(lock), idle, files).serve()


def _origin(interpreter: str, cache: Path) -> fork_cleanup.ZygoteOrigin:
    """Import everything and note what was there before."""
    env, coerced = _environment()
    path = tuple(sys.path[len(fork_cleanup.python_path(env)) :])
    roots = preload.installed_roots()
    known = fingerprint.digest(interpreter, fingerprint.fingerprint(roots))
    preload.preload(cache / f"modules-{known}.json")
    import threadpoolctl  # type: ignore[import-untyped,unused-ignore]  # after all it looks at

    libraries = threadpoolctl.ThreadpoolController()
    command = PythonCommand.parse(sys.orig_argv)
    flags = command.flags if command is not None else ()
    modules = frozenset(name for name in sys.modules if "." not in name)
    elsewhere = frozenset(name for name in _elsewhere() if "." not in name)
    return fork_cleanup.ZygoteOrigin(
        interpreter, flags, env, path, coerced, libraries, modules, elsewhere
    )


def _environment() -> tuple[dict[str, str], dict[str, str]]:
    """Return the job's import-time environment, and what the interpreter added to it itself."""
    given = {entry.partition(b"=")[0] for entry in _read("/proc/self/environ").split(b"\0")}
    env = {name: value for name, value in os.environ.items() if os.fsencode(name) in given}
    coerced = {name: value for name, value in os.environ.items() if name not in env}
    for name in zygote_client.CHANGED:
        del env[name]
        if (held := env.pop(zygote_client.HELD + name, None)) is not None:
            env[name] = held
    return env, coerced


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _check() -> None:
    if why := preload.unfit(dict(sys.modules), preload.installed_roots()):
        raise CannotLive(why)
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise CannotLive(f"importing torch starts threads: {threads} are there")
    if found := next((path for path in _descriptors() if path.startswith("/dev/nvidia")), ""):
        raise CannotLive(f"importing torch opens {found}; a fork could not use the device")


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _stamps() -> dict[str, _Stamp]:
    """Return the state of all imported files: one that is not installed may be copied over with the
    date of the old one, which its status still has."""
    elsewhere = set(_elsewhere().values())
    files = {preload.origin(module) for module in list(sys.modules.values())}
    return {path: _stamp(path)[: None if path in elsewhere else 2] for path in sorted(files - {""})}


def _packages() -> dict[str, _Stamp]:
    """Return the state of the folders of packages that are not installed: a module may be added."""
    names = _elsewhere()
    paths = (getattr(sys.modules[name], "__path__", ()) for name in names)
    return {folder: _stamp(folder)[:1] for each in paths for folder in each}


def _elsewhere() -> dict[str, str]:
    return preload.foreign(dict(sys.modules), preload.installed_roots())


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ctime_ns


def _changed(files: dict[str, _Stamp]) -> str:
    """Return a file that is no longer what was imported."""
    found = (path for path, stamp in files.items() if _stamp(path)[: len(stamp)] != stamp)
    return next(found, "")


if __name__ == "__main__":
    main(sys.argv[1:])
