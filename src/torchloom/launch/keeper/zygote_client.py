"""Find, start and ask the zygote that can fork a command's ranks: torch is imported already."""

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure
from torchloom.launch.host import sockets
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.keeper import fingerprint
from torchloom.launch.keeper.fingerprint import InterpreterProbe, basics, locate, probe
from torchloom.launch.keeper.python_command import COLD_VARIABLES, PythonCommand, cold_variable
from torchloom.launch.protocol import (
    FROM_ZYGOTE,
    FileCheck,
    KeeperRequest,
    LaunchMessage,
    ZygoteBusy,
    ZygoteCold,
    ZygoteLeave,
    ZygoteWarm,
    decode,
)
from torchloom.launch.variables import AGENT_VARIABLE
from torchloom.launch.wire import BadFrame
from torchloom.specs.dataclass import dataclass
from torchloom.unix import peer_pid, receive_message, same_user, send_message

WARM_VARIABLE = "LOOM_WARM"  # 0 turns it off
IDLE_VARIABLE = "LOOM_WARM_IDLE"  # seconds without use after which a zygote leaves
CHANGED = {  # in a zygote alone, so that importing starts no thread and touches no device
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
HELD = "LOOM_HELD_"  # before the name of a changed variable: what it was
_ROOM_VARIABLE, _ROOM = "LOOM_ROOM", 8192  # where /proc can show a fork's own variables
_ANSWER_LIMIT = 5.0  # seconds; a fork takes milliseconds
_EXCUSE_LIMIT = 600.0  # seconds for which a zygote that could not live is not tried again
_WORTH_A_LOOK = 0.01
_alert: list[str] = []  # the word that `alert` sent, for the first request that follows


@dataclass(frozen=True, slots=True)
class Cold:
    """A command that no zygote can run, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class InUse:
    """A zygote that stays, with the jobs whose ranks are its forks."""

    pid: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZygoteClient:
    """Where the warm interpreter of a command is, or would be."""

    key: str
    words: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def address(self) -> Path:
        return sockets.socket_path(f"zygote-{self.key}.sock")

    @property
    def log(self) -> Path:
        return sockets.socket_path(f"zygote-{self.key}.log")

    def connect(self) -> socket.socket | None:
        """Return a connection to it, or nothing when it is not there or not ready."""
        try:
            channel = sockets.connect(self.address)
        except OSError:
            return None
        if not same_user(channel):
            channel.close()
            return None
        return channel

    def start(self) -> None:
        """Start it, detached, unless it lives, is being started, or said that it cannot be."""
        import subprocess

        with _lock(self.key) as lock:
            if lock is None or self.excuse():
                return
            modules = settings.loom_home() / "cache"
            with self.log.open("wb") as log:
                subprocess.run(
                    [*self.words, self.words[0], str(self.address), str(modules), str(lock)],
                    cwd=os.sep,
                    env=dict(self.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    start_new_session=True,
                    check=False,
                )

    def ready(self, timeout: float) -> bool:
        """Wait for it while it is being started; false when it is not, or not in time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with _lock(self.key) as lock:
                is_absent = lock is not None
            if (channel := self.connect()) is not None:
                channel.close()
                return True
            if is_absent:
                return False
            time.sleep(_WORTH_A_LOOK)
        return False

    def is_coming(self) -> bool:
        """Tell whether it is being started: it lives and does not listen yet."""
        with _lock(self.key) as lock:
            lives = lock is None
        return lives and not self.address.exists()

    def excuse(self) -> str:
        """Return why one with this key lately could not live, if so."""
        path = excuse_path(self.address)
        with contextlib.suppress(OSError):
            if abs(time.time() - path.stat().st_mtime) < _EXCUSE_LIMIT:
                return path.read_text()
        return ""

    def keeper(self, request: KeeperRequest) -> socket.socket | Cold:
        """Have it fork a keeper and return the connection to that, or why it does not."""
        channel = self.connect()
        if channel is None:
            return Cold(self.excuse() or "the first run with this interpreter and environment")
        channel.settimeout(_ANSWER_LIMIT)
        try:
            answer = _ask(channel, replace(request, alert=_alert.pop() if _alert else None))
        except OSError as error:
            channel.close()
            return Cold(f"the zygote did not answer: {error}")
        if isinstance(answer, ZygoteWarm):
            channel.settimeout(None)
            return channel
        channel.close()
        if isinstance(answer, ZygoteCold):
            return Cold(answer.why)
        return Cold("the zygote did not answer: it closed the connection")

    def alert(self, word: str) -> None:
        """Have it look at its files now, for the request that will bring this word."""
        if (channel := self.connect()) is not None:
            with channel, contextlib.suppress(OSError):
                send_message(channel, FileCheck(word).to_wire())

    def leave(self) -> None:
        """Ask it to go; what it forked stays."""
        if (channel := self.connect()) is not None:
            with channel, contextlib.suppress(OSError):
                send_message(channel, ZygoteLeave().to_wire())

    def leave_if_idle(self) -> "InUse | bool":
        """Have it go unless a job has ranks of it; tell whether its process has ended."""
        channel = self.connect()
        if channel is None:
            return False
        with channel, contextlib.suppress(OSError):
            channel.settimeout(_ANSWER_LIMIT)
            process = ProcessIdentity.of(peer_pid(channel))
            answer = _ask(channel, ZygoteLeave(if_idle=True))
            if process is not None and isinstance(answer, ZygoteBusy):
                return InUse(process.pid, answer.jobs)
            return process is None or process.wait_exit(_ANSWER_LIMIT)
        return False


def _ask(channel: socket.socket, request: LaunchMessage) -> LaunchMessage | None:
    """Return a zygote's reply; nothing when it closed the connection or sent what is none."""
    send_message(channel, request.to_wire())
    answer = receive_message(channel)
    try:
        return None if answer is None else decode(answer, FROM_ZYGOTE)
    except BadFrame:
        return None


def find(command: PythonCommand | None, env: Mapping[str, str], cwd: str) -> ZygoteClient | Cold:
    """Return the zygote for a command with this environment and folder, living or not."""
    if command is None:
        return Cold("not a Python program")
    if why := _never(command, env):
        return Cold(why)
    interpreter = locate(command.interpreter, env, cwd)
    if interpreter is None:
        return Cold(f"there is no {command.interpreter}")
    found = probe(interpreter, command.flags, env)
    if found.missing:
        return Cold(f"{interpreter} has no {', '.join(found.missing)}")
    return _zygote(interpreter, command.flags, env, found)


def alert() -> None:
    """Tell the zygote that was used last that a run is coming: it looks at its files meanwhile.

    Whichever zygote the run will ask, this is no promise: without the word it looks then.
    """
    address = max(_addresses(), key=_used_at, default=None)
    if address is None or settings.environment().get(WARM_VARIABLE) == "0":
        return
    _alert[:] = [f"{os.getpid()}-{time.monotonic_ns()}"]
    with contextlib.suppress(Failure):  # the caller that needs the folder of the sockets reports it
        _at(address).alert(_alert[0])


def leave_all() -> None:
    """Ask every zygote of this user to go."""
    for address in _addresses():
        _at(address).leave()


def leave_idle() -> tuple[int, list[InUse], int]:
    """End the zygotes of this user that no job uses.

    Return how many ended, which stay because of a job, and how many cannot answer yet: those that
    are still being started. A linked socket belongs to another runtime folder and is left alone.
    """
    outcomes = [_at(path).leave_if_idle() for path in _addresses() if not path.is_symlink()]
    locks = settings.runtime_dir().glob("zygote-*.lock")
    starting = sum(_at(path).is_coming() for path in locks if not path.is_symlink())
    in_use = [one for one in outcomes if isinstance(one, InUse)]
    return outcomes.count(True), in_use, starting


def _addresses() -> Iterator[Path]:
    return settings.runtime_dir().glob("zygote-*.sock")


def _at(address: Path) -> ZygoteClient:
    return ZygoteClient(address.stem.removeprefix("zygote-"), (), {})


def _used_at(address: Path) -> int:
    """Return when a zygote was last asked for a keeper: it dates its socket."""
    with contextlib.suppress(OSError):
        return address.stat().st_mtime_ns
    return 0


def excuse_path(address: Path) -> Path:
    """Return where a zygote writes why it could not live."""
    return address.with_suffix(".cold")


def _never(command: PythonCommand, env: Mapping[str, str]) -> str:
    if sys.platform != "linux":
        return f"{sys.platform} cannot fork an interpreter that has imported torch"
    if env.get(WARM_VARIABLE) == "0":
        return f"{WARM_VARIABLE}=0"
    variables = [cold_variable(name) for name in COLD_VARIABLES if env.get(name)]
    return command.cold_because() or next(iter(variables), "")


def _zygote(
    interpreter: str, flags: tuple[str, ...], env: Mapping[str, str], found: InterpreterProbe
) -> ZygoteClient:
    read = fingerprint.import_environment(env)
    key = fingerprint.digest(
        interpreter, flags, read, found.fingerprint, fingerprint.surroundings()
    )
    held = {HELD + name: env[name] for name in CHANGED if name in env}
    own = basics(env) | read | held | CHANGED | {AGENT_VARIABLE: f"zygote-{key}"}
    own |= {name: env[name] for name in (IDLE_VARIABLE,) if name in env}
    own[_ROOM_VARIABLE] = "." * _ROOM
    return ZygoteClient(key, (interpreter, *flags, "-m", "torchloom.worker.process.zygote"), own)


@contextlib.contextmanager
def _lock(key: str) -> Iterator[int | None]:
    """Hold the key's lock, or yield nothing when another process has it."""
    path = sockets.socket_path(f"zygote-{key}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield lock
    finally:
        os.close(lock)
