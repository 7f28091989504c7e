"""Faults of processes: kill, stop or raise in a rank; kill a part of the plane."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from torchloom import settings
from torchloom.chaos.faults.kinds import kind_of
from torchloom.chaos.plan import Fault
from torchloom.chaos.targets import PARTS, Aim, Undo, Victim, part, target_of
from torchloom.errors import Failure
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.worker.run.steps import SIGNAL

START = "server-start"
VARIABLE = "LOOM_DATABASE"
PORT = 5432
_CREDENTIALS = struct.Struct("3i")
_KEPT = ("PATH", "LANG", "TZ", "PGDATA", "LD_LIBRARY_PATH")  # these contain no secrets
_PATIENCE = 60.0  # seconds for a server to recover after its death
_POLL = 0.05
_CONNECT = 5.0
_PROTOCOL = 3 << 16
_HELLO = b"user\0loom-chaos\0\0"  # the user need not exist: any other reply will do
_NOT_YET = b"57P03"  # cannot_connect_now
_STARTED: list["subprocess.Popen[bytes]"] = []  # started by this process
CONTINUE = "continue"


class ServerNotStarted(Failure):
    """A killed database did not start again."""

    code = "server_not_started"

    def __init__(self, words: list[str]) -> None:
        super().__init__(f"Postgres did not start again; start it with: {' '.join(words)}")


def no_server(fault: Fault, victim: Victim) -> str:
    """Return why Postgres cannot be killed; empty if it can."""
    url = settings.environment().get(VARIABLE, "")
    if not url:
        return f"the plane stores its state in files; kill-postgres needs {VARIABLE}"
    process = listener(url)
    if process is None:
        return f"no Postgres of this machine listens at {VARIABLE}; run `loom chaos` on its host"
    if os.geteuid() not in (0, _uid(process.pid)):
        return "Postgres belongs to another user; run as that user or as root"
    return ""


def aim_server(fault: Fault, victim: Victim) -> Aim | None:
    """Return the server process, with all that is needed to start it again."""
    url = settings.environment().get(VARIABLE, "")
    process = listener(url) if url else None
    undo = _how(process.pid) if process is not None else None
    if process is None or undo is None:
        return None
    return Aim(target_of("postgres", process), {"do": START, "url": _bare(url), **undo}, process)


def start_server(undo: Undo) -> None:
    """Start the server as before, unless one is running; wait until it accepts connections."""
    deadline = time.monotonic() + _PATIENCE
    while not accepts(undo["url"]):
        if time.monotonic() > deadline:
            raise ServerNotStarted(list(undo["words"]))
        living = [one for one in _STARTED if one.poll() is None]
        if not living and listener(undo["url"]) is None:  # its shared memory may still be in use
            living.append(_spawn(undo))
        _STARTED[:] = living
        time.sleep(_POLL)


def listener(url: str) -> ProcessIdentity | None:
    """Return the process that listens at a URL, if it is a Postgres of this machine."""
    host, port = _address(url)
    pid = _at_socket(host, port) if host.startswith("/") else _at_port(port, host)
    if pid is None or _name(pid) != "postgres":
        return None
    return ProcessIdentity.of(pid)


def accepts(url: str) -> bool:
    """Tell whether a server accepts connections, which it refuses while it recovers."""
    try:
        with _connected(*_address(url)) as channel:
            channel.sendall(struct.pack("!II", len(_HELLO) + 8, _PROTOCOL) + _HELLO)
            reply = channel.recv(4096)
    except OSError:
        return False
    return bool(reply) and _NOT_YET not in reply


def _connected(host: str, port: int) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, port), _CONNECT)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(_CONNECT)
    try:
        channel.connect(f"{host}/.s.PGSQL.{port}")
    except OSError:
        channel.close()
        raise
    return channel


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    asked = parse_qs(parts.query)
    host = asked.get("host", [unquote(parts.hostname or "")])[0]
    port = asked.get("port", [str(parts.port or PORT)])[0]
    return host or "localhost", int(port) if port.isdecimal() else PORT


def _bare(url: str) -> str:
    """Return a URL without user and password, which must not be written to disk."""
    host, port = _address(url)
    return f"postgresql:///?host={host}&port={port}"


def _at_socket(folder: str, port: int) -> int | None:
    """Return the pid of the process that created a server socket."""
    try:
        with _connected(folder, port) as channel:
            peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    pid: int = _CREDENTIALS.unpack(peer)[0]
    return pid or None


def _at_port(port: int, host: str) -> int | None:
    """Return the pid of the process that listens at a loopback port."""
    if host not in settings.LOOPBACK_NAMES:
        return None
    import psutil

    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and tuple(one.laddr)[1:] == (port,) and one.pid:
            return int(one.pid)
    return None


def _how(pid: int) -> dict[str, Any] | None:
    """Return how a process was started; None if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]]
        words[0] = os.readlink(folder / "exe")
        found, cwd = folder.stat(), os.readlink(folder / "cwd")
        env = _environment((folder / "environ").read_bytes())
        log = os.readlink(folder / "fd" / "2")
    except (OSError, IndexError):
        return None
    who = {"uid": found.st_uid, "gid": found.st_gid}
    return {"words": words, "cwd": cwd, "env": env, "log": log, **who}


def _environment(text: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(word).partition("=") for word in text.split(b"\0") if word)
    return {name: value for name, _, value in pairs if name in _KEPT or name.startswith("LC_")}


def _spawn(undo: Undo) -> "subprocess.Popen[bytes]":
    other: Mapping[str, Any] = {}
    if undo["uid"] != os.geteuid():
        other = {"user": undo["uid"], "group": undo["gid"], "extra_groups": []}
    log = undo["log"] if Path(undo["log"]).is_file() else os.devnull
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(log, "ab"))
        return subprocess.Popen(
            list(undo["words"]),
            cwd=undo["cwd"],
            env=dict(undo["env"]),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            **other,
        )


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _uid(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return -1


def no_rank(fault: Fault, victim: Victim) -> str:
    """Return why a rank cannot be hit; empty if it can."""
    ranks = victim.ranks()
    if not ranks:
        return f"no rank of {victim.job} runs on this host; run `loom chaos` where they are"
    if fault.rank is not None and fault.rank not in ranks:
        return f"no rank {fault.rank} runs here; there are {', '.join(map(str, sorted(ranks)))}"
    return ""


def no_listener(fault: Fault, victim: Victim) -> str:
    """Return why a rank cannot be made to raise; empty if it can."""
    if why := no_rank(fault, victim):
        return why
    others = [rank for rank, process in victim.ranks().items() if not listens(process)]
    wanted = others if fault.rank is None else [rank for rank in others if rank == fault.rank]
    if wanted:
        return f"rank {wanted[0]} is not in `run.steps()`; `raise` needs a program that uses it"
    return ""


def aim_rank(fault: Fault, victim: Victim) -> Aim | None:
    """Return the chosen rank, or the lowest; None if it is gone."""
    ranks = victim.ranks()
    rank = fault.rank if fault.rank is not None else min(ranks, default=-1)
    if rank not in ranks:
        return None
    process = ranks[rank]
    undo = {"do": CONTINUE, "process": _identity(process)} if fault.kind == "stop" else None
    return Aim(target_of("rank", process, rank), undo, process)


def no_part(fault: Fault, victim: Victim) -> str:
    """Return why a part of the plane cannot be killed; empty if it can."""
    name = kind_of(fault.kind).hits
    if part(name) is not None:
        return ""
    if name == "nats":
        return "the plane has no NATS server of its own; unset LOOM_NATS to have one"
    return f"the plane has no {name} here; `loom up` starts one"


def aim_part(fault: Fault, victim: Victim) -> Aim | None:
    """Return the process of a part of the plane; None if it is not running."""
    name = kind_of(fault.kind).hits
    process = part(name) if name in PARTS else None
    return Aim(target_of(name, process), None, process) if process else None


def sending(signum: int) -> Callable[[Aim], bool]:
    """Return a function that sends a signal to the process of an aim."""

    def send(aim: Aim) -> bool:
        return aim.process is not None and aim.process.send(signum)

    return send


def provoke(aim: Aim) -> bool:
    """Make a rank raise, if it handles the signal: otherwise the signal would kill it."""
    process = aim.process
    return process is not None and listens(process) and process.send(SIGNAL)


def listens(process: ProcessIdentity) -> bool:
    """Tell whether a process handles the signal that makes it raise."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(SIGNAL and int(caught, 16) >> (SIGNAL - 1) & 1)


def continue_process(undo: Undo) -> None:
    """Send SIGCONT to a stopped process, if it still exists."""
    ProcessIdentity.from_dict(dict(undo["process"])).send(signal.SIGCONT)


def _identity(process: ProcessIdentity) -> dict[str, object]:
    return {
        "host": process.host,
        "boot": process.boot,
        "pid": process.pid,
        "started": process.started,
    }
