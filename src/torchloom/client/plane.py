"""Find, start and ask the plane of this user on this host, over its unix sockets.

Everything here blocks, needs the standard library alone and is imported in a few milliseconds.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.client.errors import (
    NoPlane,
    PlaneForeign,
    PlaneLost,
    PlaneNotStarted,
    PlaneSilent,
    from_answer,
)
from torchloom.errors import Failure
from torchloom.unix import (
    is_private,
    make_private,
    reachable,
    receive_message,
    same_user,
    send_message,
)

if TYPE_CHECKING:
    import socket

LIMIT = 120.0  # seconds for a plane to be up
_MODULE = "torchloom.plane"
_SHELL = "/bin/sh"
_APART = '"$@" &'  # so that the plane is no child of the caller, which then need not reap it
_NOT_THE_PLANES = ("LOOM_JOB", "LOOM_NODE", "LOOM_ROLE", "LOOM_ATTEMPT", "LOOM_GENERATION")
_AGENT_VARIABLE = "LOOM_AGENT_OF"  # what carries it is none of the programs that a job left behind
_START_LOOK = 0.01
PATIENCE = 30.0  # seconds for an answer, or for a plane to be up
_RESTART = 5.0  # seconds that a weaver may take to come back
_WORTH_A_LOOK = 0.02
_AGAIN = 0.2  # seconds before a question that was lost is asked again
_SOON = 3.0  # seconds after which a caller reports that it waits
_SHAPE = ("url", "nats", "host", "pid", "started_at", "token_file")


def start_plane(wait: bool, options: Mapping[str, Any]) -> None:
    """Start a plane; with `wait` return when it, or one that was faster, is up."""
    made_folder()
    words = [sys.executable, "-P", "-m", _MODULE, *_words(options)]
    read_end, write_end = os.pipe()
    try:
        _spawn(words, write_end if wait else None)
    finally:
        os.close(write_end)
    with open(read_end, "rb") as report:
        if not wait:
            return
        _understand(_first_line(report.fileno()), options)


def _words(options: Mapping[str, Any]) -> Sequence[str]:
    flags = [f"--{name}" for name, value in options.items() if value is True]
    values = [f"--{name}={value}" for name, value in options.items() if isinstance(value, str)]
    return [*flags, *values]


def plane_environment() -> dict[str, str]:
    """Return the environment that a plane is started with."""
    env = {k: v for k, v in settings.environment().items() if k not in _NOT_THE_PLANES}
    return env | {_AGENT_VARIABLE: "plane"}


def _spawn(words: Sequence[str], report: int | None) -> None:
    path = log()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(path), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 2 if report is None else report, 1),
    ]
    argv = [_SHELL, "-c", _APART, "loom-plane", *words]
    pid = os.posix_spawn(_SHELL, argv, plane_environment(), file_actions=actions)
    os.waitpid(pid, 0)


def _first_line(report: int) -> dict[str, Any] | None:
    """Return the first line of the started process; nothing when it ended without one."""
    import json
    import select

    text, deadline = b"", time.monotonic() + LIMIT
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([report], [], [], left)[0]:
            raise PlaneNotStarted(f"the plane is not up after {LIMIT:.0f} s; see {log()}")
        more = os.read(report, 1 << 16)
        if not more:
            return None
        text += more
    reply: dict[str, Any] = json.loads(text)
    return reply


def _understand(reply: dict[str, Any] | None, options: Mapping[str, Any]) -> None:
    if reply is None:
        raise PlaneNotStarted(f"the plane ended at once; see {log()}")
    if "error" in reply:
        raise from_answer(reply)
    if reply.get("ok") == "other":
        _wait_for_the_other(options)


def _wait_for_the_other(options: Mapping[str, Any]) -> None:
    """Another process is starting a plane: return when that one is up."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            with call(control(), LIMIT) as channel:
                answer(channel, question("ready", options))
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise PlaneNotStarted(f"cannot start another plane: {error}") from error
        time.sleep(_START_LOOK)


def find() -> dict[str, Any] | None:
    """Return the status of this user's plane, or nothing when none runs here."""
    try:
        with call(control(), PATIENCE) as channel:
            return _checked(answer(channel, question("status", {})))
    except PlaneSilent:
        raise
    except (OSError, PlaneLost):  # not there, or ending
        return None


def page_of(job: str) -> str:
    """Return the address of a job's page; nothing where this user's plane serves none here.

    Nothing is asked: a server that answers has published its address.
    """
    import json
    import os
    from urllib.parse import quote

    try:
        if not is_private(folder()):
            return ""
        shown = json.loads(card().read_text())
        os.kill(int(shown["pid"]), 0)
        return f"{shown['url']}/jobs/{quote(job, safe='')}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def shown_status(found: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status that `loom up --status --json` prints."""
    return {name: found[name] for name in _SHAPE}


def ask_control(name: str, timeout: float | None = PATIENCE, **facts: Any) -> Any:
    """Ask the process that keeps the plane alive: `status`, `ready`, `leave`."""
    try:
        channel = call(control(), PATIENCE)
    except OSError as error:
        raise NoPlane from error
    with channel:
        return answer(channel, question(name, facts))


def ask(name: str, timeout: float | None = PATIENCE, **facts: Any) -> Any:
    """Ask the weaver and return its answer; a refusal is raised with the weaver's message."""
    with _weaver(timeout) as channel:
        return answer(channel, question(name, facts))


def settle(
    name: str,
    on_wait: Callable[[str], None],
    timeout: float | None = PATIENCE,
    soon: float | None = _SOON,
    **facts: Any,
) -> Any:
    """Request a change, and retry until its outcome is known; return the answer.

    With `key` or `id` among the facts the weaver does it once, however often it is asked. If the
    plane ended meanwhile it is started again. `on_wait` is called with the reason whenever the
    answer takes long; it may raise.
    """
    asked, was_there = question(name, facts), False
    while True:
        try:
            with _weaver(timeout) as channel:
                was_there = True
                return _answer_in_time(channel, asked, on_wait, soon)
        except PlaneForeign:
            raise
        except PlaneLost as error:
            on_wait(_why(error))
        except NoPlane:
            if not (was_there and settings.wants_plane()):
                raise
            _start_again(on_wait)
        time.sleep(_AGAIN)


def _start_again(on_wait: Callable[[str], None]) -> None:
    try:
        find_or_start()
    except PlaneLost as error:
        on_wait(_why(error))


def _answer_in_time(
    channel: "socket.socket",
    asked: dict[str, Any],
    on_wait: Callable[[str], None],
    soon: float | None,
) -> Any:
    """Ask over an open connection; report once when the answer does not come soon."""
    import select

    if soon is None:
        return answer(channel, asked)
    send(channel, asked)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(soon * 1000):
        on_wait(f"the plane has not answered {asked['ask']!r} for {soon:.0f} s")
    return receive(channel, asked)


def _why(error: PlaneLost) -> str:
    return str(error).partition(";")[0]


def leave(timeout: float = PATIENCE) -> bool:
    """End the plane and return when it is gone; false when none was there."""
    try:
        channel = call(control(), PATIENCE)
    except OSError:
        return False
    with channel:
        try:
            send_message(channel, question("leave", {}))
            while receive_message(channel) is not None:
                pass
        except TimeoutError:
            raise PlaneLost(f"the plane did not stop within {timeout:.0f} s") from None
        except (OSError, ValueError):  # it is gone
            pass
    return True


def find_or_start(wait: bool = True, **options: Any) -> dict[str, Any] | None:
    """Return the status of the plane, after starting one in the background if there is none.

    Without `wait` nothing is returned: a plane that is not there is being started.
    """

    if settings.has_plane_above():
        return None
    try:
        with call(control(), PATIENCE) as channel:
            if not wait:
                return None
            _checked(answer(channel, question("status", {})))
            answer(channel, question("ready", options))
    except PlaneSilent:
        raise
    except (OSError, PlaneLost):  # there is none, or it was ending
        start_plane(wait, options)
    return find() if wait else None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a plane, if it is the one of our state folder."""
    if (home := str(settings.loom_home())) != found["home"]:
        raise NoPlane(
            f"the plane in {folder()} is that of {found['home']}, not of {home}; "
            f"`LOOM_HOME={found['home']} loom down` ends it"
        )
    return found


def _weaver(timeout: float | None) -> "socket.socket":
    """Connect to the weaver; while the plane restarts it, wait a moment."""
    deadline = time.monotonic() + _RESTART
    while True:
        try:
            return call(door(), timeout)
        except PermissionError as error:
            raise PlaneForeign(str(error)) from error
        except OSError as error:
            if not _lives():
                raise NoPlane from error
            if time.monotonic() > deadline:
                raise PlaneLost(f"the weaver does not answer: {error}") from error
        time.sleep(_WORTH_A_LOOK)


def _lives() -> bool:
    try:
        call(control(), PATIENCE).close()
    except OSError:
        return False
    return True


class PlaneFolderUnsafe(Failure):
    """Another user owns the folder of the plane's sockets, or it cannot be made."""

    code = "plane_folder_unsafe"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot keep the plane's sockets in {path}: {why}; "
            "set XDG_RUNTIME_DIR to a local folder of yours, or unset it"
        )


def folder() -> Path:
    """Return where the plane's sockets, lock and record are; it need not exist.

    It is the same for every shell of this user, whatever its XDG_RUNTIME_DIR.
    """
    return settings.plane_dir()


def made_folder() -> Path:
    """Return that folder, made if need be, after checking its owner."""
    path = folder()
    for one in (path.parent, path):
        try:
            make_private(one)
        except OSError as error:
            raise PlaneFolderUnsafe(one, error.strerror or str(error)) from error
    return path


def door() -> Path:
    """Return where the weaver takes questions."""
    return folder() / "weaver.sock"


def control() -> Path:
    """Return where the process that keeps the plane alive takes questions."""
    return folder() / "plane.sock"


def card() -> Path:
    """Return the file in which the plane's HTTP server publishes its address."""
    return folder() / "server.json"


def log() -> Path:
    """Return the log of that process."""
    return settings.loom_home() / "plane" / "logs" / f"{os.uname().nodename}-plane.log"


VERSION = 1


def call(path: Path, timeout: float | None) -> "socket.socket":
    """Connect to a process of this user that listens at a path; OSError when none does."""
    import socket

    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(timeout)
        with reachable(path) as address:
            channel.connect(address)
        if not same_user(channel):
            raise PermissionError(f"another user's process answers at {path}")
    except OSError:
        channel.close()
        raise
    return channel


def question(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent to ask something."""
    return {**facts, "ask": name, "version": VERSION}


def answer(channel: "socket.socket", asked: Mapping[str, Any]) -> Any:
    """Ask over an open connection and return the answer; an error that is answered is raised."""
    send(channel, asked)
    return receive(channel, asked)


def send(channel: "socket.socket", asked: Mapping[str, Any]) -> None:
    """Send a question over an open connection."""
    with _loss_in_words(asked):
        send_message(channel, asked)


def receive(channel: "socket.socket", asked: Mapping[str, Any]) -> Any:
    """Return the answer to a question that was sent; an error that is answered is raised."""
    with _loss_in_words(asked):
        reply = receive_message(channel)
    if reply is None:
        raise PlaneLost(f"the plane closed the connection before it answered {asked['ask']!r}")
    return unpacked(reply)


@contextmanager
def _loss_in_words(asked: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise PlaneSilent(f"the plane did not answer {asked['ask']!r} in time") from None
    except (OSError, ValueError) as error:
        raise PlaneLost(f"the plane did not answer {asked['ask']!r}: {error}") from error


def unpacked(reply: Mapping[str, Any]) -> Any:
    """Return what an answer holds, or raise the error in it."""
    if "error" in reply:
        raise from_answer(dict(reply))
    return reply.get("ok")
