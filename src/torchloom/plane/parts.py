"""The processes of a plane: their commands and environments, their restarts and bounded logs."""

import contextlib
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom import accounts
from torchloom.accounts import Account
from torchloom.bus import subjects
from torchloom.bus.nats.credentials import (
    ADDRESS_VARIABLE,
    AGENT_ID_VARIABLE,
    AUTHORITY_VARIABLE,
    CREDENTIALS_VARIABLE,
)
from torchloom.errors import UserError, shorten
from torchloom.launch.host.identity import host_name
from torchloom.launch.host.restarter import RestartedProcess
from torchloom.launch.keeper.spawn import SpawnOrder, spawn
from torchloom.plane import nats_server
from torchloom.plane.credentials import WEAVER, Credentials
from torchloom.plane.discovery import NatsAddress
from torchloom.settings import LOOPBACK

_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_MOST_LOG = 4 << 20  # bytes of a log, after which it is put aside
LOG_INTERVAL = 2.0  # seconds between two checks of the length of logs
_MOST_OLD = 16 << 20  # bytes that are kept of a log that was put aside
_TAIL = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanePart:
    """One process of the plane: what to execute, with which environment, and where it logs.

    `connect` is called at every start with our end of a socket pair; the process has the other one
    as descriptor 3.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    connect: Callable[[socket.socket], None] | None = None

    def last_log_line(self) -> str:
        """Return the last line of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line]
            return lines[-1].strip() if lines else ""
        return ""


class PartProcess(RestartedProcess):
    """A part and the process that runs it."""

    def __init__(self, part: PlanePart, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.part = part

    def execute(self) -> int:
        """Execute the part in a session of its own; the kernel ends it with us."""
        part = self.part
        part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_log(part.log)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        log = os.open(part.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fds = [null, log, log]
        if part.connect is not None:
            ours, theirs = socket.socketpair()
            part.connect(ours)
            fds.append(theirs.detach())
        try:
            return spawn(SpawnOrder(part.argv, part.env, os.sep, tuple(fds)))
        finally:
            for fd in {*fds}:
                os.close(fd)

    def _plan_restart(self, how: str) -> None:
        super()._plan_restart(how)
        _log.warning("%s ended (%s); again in %.1f s", self.part.name, how, self.wait or 0.0)


@dataclass(slots=True)
class PartSupervisor:
    """Starts, reaps and restarts. Its owner calls `check` after SIGCHLD and when it is due."""

    clock: Callable[[], float] = time.monotonic
    children: dict[str, PartProcess] = field(default_factory=dict)

    def start(self, part: PlanePart) -> PartProcess:
        """Start a part, and restart it from now on whenever it ends."""
        child = self.children.setdefault(part.name, PartProcess(part, self.clock))
        child.start()
        return child

    def check(self) -> float | None:
        """Reap what ended, start what is due; return seconds until the next check, if any."""
        for child in self.children.values():
            if child.pid is not None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.note_end(status)
            child.restart_if_due()
        waits = [child.wait for child in self.children.values() if child.wait is not None]
        return min(waits, default=None)

    def bound_logs(self) -> None:
        """Put aside what is too long of each log, while its process writes."""
        for child in self.children.values():
            bound_log(child.part.log)

    def end(self, grace: float = _GRACE) -> None:
        """End all, those started last first; return when they have ended."""
        for child in reversed(self.children.values()):
            child.give_up()
            if child.pid is not None:
                _end(child.pid, grace)
                child.pid = None


def bound_log(path: Path, most: int = _MOST_LOG) -> None:
    """Move what a log holds to `.old`, replacing that, when it is too long.

    The file stays the same, for processes append to it: it is copied, then emptied. What is
    written between the two is lost. Where that fails, the next check tries again.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= most:
            return
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        into = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with path.open("rb") as log, open(into, "wb") as copy:
            log.seek(max(0, path.stat().st_size - _MOST_OLD))
            copy.write(log.read(_MOST_OLD))
        partial.replace(path.with_suffix(".old"))
        os.truncate(path, 0)


def _end(pid: int, grace: float) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.005)


NATS, AGENT, SERVER = "nats", "agent", "server"
_ACCOUNT_LOG = "plane/logs/agent.log"  # in the state folder of an account
NAMES = (NATS, WEAVER, AGENT, SERVER)
COMMANDS: Mapping[str, tuple[str, ...]] = {
    WEAVER: (sys.executable, "-P", "-m", "torchloom.weaver"),
    AGENT: (sys.executable, "-P", "-m", "torchloom.launch.node_agent"),
    SERVER: (sys.executable, "-P", "-m", "torchloom.server"),
}
_ALONE = (NATS, WEAVER, AGENT)  # can be started without the other parts
_LATER = 10.0  # seconds that the server waits while a job that has just begun needs the machine
MOST_ENDS = 3  # in a row, of a part that never answered: it counts as broken
_SSH = "SSH_AUTH_SOCK"
_S3 = "s3://"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_FOR_JOBS = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
        *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOSTNAME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "VIRTUAL_ENV", "NO_COLOR"),
        *("BASH_ENV", "MODULEPATH", "MODULESHOME", "LOADEDMODULES", "_LMFILES_"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "RES_OPTIONS"),
        *("HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"),
        *("LOOM_HOME", "LOOM_PLANE", "LOOM_PLANE_IDLE", "LOOM_WARM", "LOOM_WARM_IDLE"),
        *("LOOM_ATTACH", "LOOM_ATTACH_SKIP", "LOOM_HANG", "LOOM_HANG_LIMIT"),
        *("LOOM_CHECKPOINTS", "LOOM_DEVICES"),
        *("LOOM_DIGESTS", "LOOM_LEDGER", "LOOM_MODULES", "LOOM_SSH", "LOOM_TORCHRUN"),
        *("LOOM_DEADLINE", "LOOM_CHECKPOINT_MARGIN", "LOOMCONFIG", "TORCHXCONFIG"),
    )
)
_FOR_JOBS_PREFIXES = (
    *("LC_", "PYTHON", "CONDA_", "LMOD_", "TORCH", "PYTORCH_", "TRITON_", "XLA_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "IBV_", "HIP_", "ROCR_", "HSA_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "THP_"),
    *("SLURM", "PBS_", "LSB_", "LSF_", "PALS_", "PMI", "OMPI_", "MPICH_", "HYDRA_"),
)
_SECRET = re.compile(r"(?i)token|secret|passw(or)?d|credential|jwt|cookie|(api|access|auth)_?key")


@dataclass(frozen=True, slots=True)
class PlaneParts:
    """Makes the parts of one plane."""

    keys: Credentials
    folder: Path  # of sockets and what is made anew at every start
    logs: Path
    env: Mapping[str, str]
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: COMMANDS)

    def nats(
        self, address: NatsAddress, certificate: nats_server.Certificate | None = None
    ) -> PlanePart:
        """Return a NATS server of our own for an address."""
        path = self.folder / "nats.conf"
        log = self._log(NATS)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = nats_server.configuration(self.keys, address.host, address.port, log, certificate)
        nats_server.write_configuration(path, text)
        return PlanePart(NATS, (nats_server.program(), "-c", str(path)), self.env, log)

    def part(self, name: str, address: NatsAddress, authority: Path | None = None) -> PlanePart:
        """Return the weaver or the node agent, with the address and credentials of the bus."""
        secret = self.keys.user(name) if name == WEAVER else self.keys.agent(agent_id())
        own = {ADDRESS_VARIABLE: address.url, CREDENTIALS_VARIABLE: str(secret)}
        if name == AGENT:
            own[AGENT_ID_VARIABLE] = agent_id()
        if authority is not None:
            own[AUTHORITY_VARIABLE] = str(authority)
        return PlanePart(name, self.commands[name], {**self.env, **own}, self._log(name))

    def account(self, account: Account, connect: Callable[[socket.socket], None]) -> PlanePart:
        """Return the agent of an account's jobs: a process of that account, with a log there."""
        name = account_agent(account.name)
        words = (*self.commands[AGENT], "--line", "3", "--agent", name)
        argv = accounts.command(account, words, _ACCOUNT_LOG, os.getpid(), sockets=1)
        env = accounts.environment(account, job_environment(self.env))
        return PlanePart(f"{AGENT}-{account.name}", tuple(argv), env, Path(os.devnull), connect)

    def server(self, host: str, certificate: nats_server.Certificate | None = None) -> PlanePart:
        """Return the HTTP server at an address; with a certificate it uses TLS."""
        words = ["--host", host, "--runtime", str(self.folder)]
        if certificate is not None:
            shown = (certificate.chain, certificate.key, certificate.authority)
            for name, path in zip(("--tls-cert", "--tls-key", "--tls-ca"), shown, strict=True):
                words += [name, str(path)]
        return PlanePart(SERVER, (*self.commands[SERVER], *words), self.env, self._log(SERVER))

    def _log(self, name: str) -> Path:
        return self.logs / f"{socket.gethostname()}-{name}.log"


def agent_id() -> str:
    """Return the name of this node's agent: the host's, as far as a subject can hold it."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64] or "node"


def account_agent(account: str) -> str:
    """Return the name of the agent here of an account's jobs."""
    return subjects.agent_of_account(socket.gethostname(), account)


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """`pinned`: stay without a job. `only`: one part. `host`: listen at this address of ours.

    `served`: start the HTTP server at once, and be up when it answers.
    """

    pinned: bool = False
    only: str = ""
    host: str = ""
    served: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that are wanted."""
        return (self.only,) if self.only else NAMES

    @property
    def address(self) -> str:
        return self.host or LOOPBACK

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "PlaneOptions":
        """Return the options in a request; unknown ones are ignored."""
        only, host = str(facts.get("only") or ""), str(facts.get("host") or "")
        if only and only not in _ALONE:
            raise UserError(f"cannot start {shorten(only)!r} alone; choose {' or '.join(_ALONE)}")
        return cls(facts.get("pinned") is True, only, host, facts.get("served") is True)

    @classmethod
    def read(cls, words: Sequence[str]) -> "PlaneOptions":
        """Return the options of a command line: `--pinned`, `--served`, `--only=PART`, ..."""
        pairs = (word.removeprefix("--").partition("=") for word in words)
        return cls.of({name: value if equals else True for name, equals, value in pairs})


@dataclass(slots=True)
class HttpServerPart:
    """The HTTP server as a part of a plane: when to start it, its address, its problem."""

    card: Path  # in which the server publishes its address
    supervisor: PartSupervisor
    make: Callable[[], PlanePart]
    clock: Callable[[], float] = time.monotonic
    due: float | None = None
    answered: bool = False

    def want(self, at_once: bool) -> None:
        """Schedule its start: at once, or when a job that begins now has begun."""
        due = self.clock() + (0.0 if at_once else _LATER)
        if self.child is None:
            self.due = due if self.due is None else min(self.due, due)

    def check(self) -> float | None:
        """Start it if it is due; return seconds until the next check, if any."""
        if self.due is None:
            return None
        left = self.due - self.clock()
        if left > 0:
            return left
        self.due = None
        self.supervisor.start(self.make())
        return None

    @property
    def child(self) -> PartProcess | None:
        return self.supervisor.children.get(SERVER)

    def url(self) -> str:
        """Return its address; empty while it does not answer."""
        child = self.child
        try:
            card = json.loads(self.card.read_text())
            if child is not None and child.pid is not None and card["pid"] == child.pid:
                self.answered = True
                return str(card["url"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not written yet, or half of it
        return ""

    def is_settled(self) -> bool:
        """Tell whether there is nothing to wait for: it answers, was not wanted, or never will."""
        return bool((self.due is None and self.child is None) or self.url() or self.problem())

    def problem(self) -> str:
        """Return why it does not run, after enough tries; else an empty text."""
        child = self.child
        if child is None or self.answered or child.ends < MOST_ENDS:
            return ""
        words = child.part.last_log_line() or child.how
        return f"the HTTP server did not start: {words}; see {child.part.log}"


def job_environment(
    env: Mapping[str, str], hosts: Iterable[str] = (), store: str = ""
) -> dict[str, str]:
    """Return the part of the plane's environment that jobs of the queue get: what is listed.

    The plane's own variables are those of the shell it was started from, and a job may be another
    person's. What it needs besides is in its spec. `hosts` are where it goes: ssh must get there.
    `store` is where its checkpoints go: to one in S3 all of its processes need the plane's keys.
    """
    found = {name: value for name, value in env.items() if _is_for_jobs(name, value)}
    if _SSH in env and set(hosts) - {host_name()}:
        found[_SSH] = env[_SSH]
    if any(place.startswith(_S3) for place in (store, env.get("LOOM_CHECKPOINTS", ""))):
        found |= {name: value for name, value in env.items() if name.startswith("AWS_")}
    return found


def _is_for_jobs(name: str, value: str) -> bool:
    if name.lower() in _PROXIES:
        return "@" not in value  # no password
    is_listed = name in _FOR_JOBS or name.startswith(_FOR_JOBS_PREFIXES)
    return is_listed and not _SECRET.search(name)
