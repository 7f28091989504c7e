"""Bare hosts: what can be run on them, seen of them, and what can happen to them."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from .host import Host, raise_hosts, release, wire
from .leftovers import MARK, claim, end, end_all, every_pid, net_of, session_of, sweep

NETWORK, PREFIX = "10.77.0", 24
CTL = "ctl"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass
class Daemon:
    """Something that belongs to a host and not to a test; a reset lets it live."""

    host: str
    argv: Sequence[str | Path]
    process: subprocess.Popen[str]


class Hosts:
    """`ctl` and n1, n2, ...: they share files and nothing else; `ctl` is also their switch."""

    def __init__(self, count: int = 4) -> None:
        self.names = tuple(f"n{number}" for number in range(1, count + 1))
        self.addresses = {CTL: f"{NETWORK}.1"}
        self.addresses |= {name: f"{NETWORK}.{10 + int(name[1:])}" for name in self.names}
        self.env: dict[str, str] = {}  # what commands get beside the variables of the test
        self.folder = Path()
        self._lock = -1
        self._hosts: dict[str, Host] = {}
        self._daemons: list[Daemon] = []
        self._started: list[subprocess.Popen[str]] = []
        self._private: list[tuple[str, Path]] = []
        self._disturbed: set[str] = set()

    def __enter__(self) -> Self:
        sweep()
        self.folder, self._lock = claim()
        try:
            self.bin.mkdir()
            self.env[MARK] = self.folder.name
            hosts = raise_hosts(self.addresses, self.folder, {**os.environ, **self.env})
            self._hosts = {host.name: host for host in hosts}
            wire(hosts[0], hosts[1:], PREFIX)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process on every host, and the hosts; remove their folder."""
        end_all({host.net for host in self._hosts.values()})
        for host in self._hosts.values():
            release(host.holder)
        self._hosts, self._daemons = {}, []
        self._bury()
        if self._lock >= 0:
            shutil.rmtree(self.folder)
            os.close(self._lock)
            self._lock = -1

    @property
    def bin(self) -> Path:
        """The folder that stands first on every host's PATH."""
        return self.folder / "bin"

    def popen(
        self,
        host: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int | IO[str] = subprocess.DEVNULL,
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in a session of its own; `pid` is the test's number for it."""
        place = self._hosts[host]
        path = f"{self.bin}:{os.environ['PATH']}:{SYSTEM_PATH}"
        with place.numbering():
            process = subprocess.Popen(
                [*place.enter(), "env", "-C", str(cwd or Path.cwd()), *map(str, argv)],
                env={**os.environ, "PATH": path, **self.env, **(env or {})},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(
        self,
        host: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and return what it did; after the timeout it is killed."""
        pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        with self.popen(host, argv, env, cwd, stdin=pipe) as process:
            try:
                out, err = process.communicate(stdin, timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        self._started.remove(process)
        return subprocess.CompletedProcess(list(map(str, argv)), process.returncode, out, err)

    def pids(self, host: str) -> set[int]:
        """Return what runs on a host, without its holder and its daemons."""
        daemons = {daemon.process.pid for daemon in self._daemons}
        return {pid for pid in self._every_pid(host) if session_of(pid) not in {None, *daemons}}

    def host_of(self, pid: int) -> str | None:
        """Return the host that a process runs on; None for one of no host or an ended one."""
        nets = {host.net: host.name for host in self._hosts.values()}
        return nets.get(net_of(pid))

    def cut(self, host: str) -> None:
        """Pull the host's cable at the switch: silence on both sides, nothing is reset."""
        self._disturbed.add(host)
        self._hosts[CTL].act("ip", "link", "set", host, "down")

    def mend(self, host: str) -> None:
        """Plug the cable in again."""
        self._hosts[CTL].act("ip", "link", "set", host, "up")

    def shape(self, host: str, rate: str) -> None:
        """Let the host send no faster than this: `10mbit`."""
        self._disturbed.add(host)
        bucket = ["rate", rate, "burst", "256kb", "latency", "50ms"]
        self._hosts[host].act("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *bucket)

    def private(self, path: Path | str, hosts: Iterable[str] = ()) -> None:
        """Put an empty folder of each host's own over an existing one, until the test ends."""
        for host in hosts or self.addresses:
            self._hosts[host].act("mount", "-t", "tmpfs", "tmpfs", str(path))
            self._private.append((host, Path(path)))

    def kill_host(self, host: str) -> None:
        """Kill everything on the host, daemons too; `cut` it first for a silent death.

        All stop before any is killed: nobody there lives to tell of another's end.
        """
        for pid in self._every_pid(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        end(lambda: self._every_pid(host))

    def boot(self, host: str) -> None:
        """Start the daemons of the host that do not run."""
        for daemon in self._daemons:
            if daemon.host == host and self.host_of(daemon.process.pid) != host:
                daemon.process = self._spawn(host, daemon.argv)

    def daemon(self, host: str, *argv: str | Path) -> None:
        """Start something that belongs to the host; its output goes to a file in `folder`."""
        self._daemons.append(Daemon(host, argv, self._spawn(host, argv)))

    def repair(self) -> None:
        """Mend every cable and boot every host."""
        for host in self._disturbed:
            self.mend(host)
            self._hosts[host].act("sh", "-c", "tc qdisc del dev eth0 root 2>/dev/null || :")
        self._disturbed.clear()
        for host in self._hosts:
            self.boot(host)

    def reset(self) -> None:
        """Make the hosts as they were before the test: its processes end, cables are mended."""
        self.repair()
        end(lambda: {pid for host in self._hosts for pid in self.pids(host)})
        for host, path in reversed(self._private):
            self._hosts[host].act("umount", str(path))
        self._private.clear()
        self._bury()

    def _every_pid(self, host: str) -> set[int]:
        here = self._hosts[host]
        return {pid for pid in every_pid() if net_of(pid) == here.net} - here.own_pids()

    def _spawn(self, host: str, argv: Sequence[str | Path]) -> subprocess.Popen[str]:
        with (self.folder / host / f"{Path(argv[0]).name}.log").open("a") as log:
            return self.popen(host, argv, cwd="/", stdout=log, stderr=log)

    def _bury(self) -> None:
        """Collect the killed processes, all but daemons, and close our ends of their pipes."""
        daemons = [daemon.process for daemon in self._daemons]
        for process in [each for each in self._started if each not in daemons]:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()
            self._started.remove(process)
