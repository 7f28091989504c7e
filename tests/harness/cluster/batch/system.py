"""A fake batch system: its daemons on hosts that are namespaces, or on this machine alone."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from ...home import until
from ..hosts import CTL, SYSTEM_PATH, Hosts

ROOT = Path(__file__).resolve().parents[4]
# Commands and daemons start in a few milliseconds: without site-packages, and without what the
# package of the cluster imports for tests.
PROGRAM = """\
#!{python} -IS
import sys, types
for name in ("tests", "tests.harness", "tests.harness.cluster", "tests.harness.cluster.{vendor}"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = ["{root}/" + name.replace(".", "/")]
{body}
"""
SERVER = """\
from pathlib import Path
from tests.harness.cluster.batch.server import main
main(Path({folder!r}), sys.argv[1:])"""
NODE = """\
from pathlib import Path
from tests.harness.cluster.batch.node import main
main(Path({folder!r}), sys.argv[1:])"""
COMMAND = """\
from tests.harness.cluster.batch.command import run
from tests.harness.cluster.{module} import {function}
sys.exit(run({folder!r}, {function}))"""


class BatchSystem:
    """What PBS and LSF have in common for a test."""

    vendor: ClassVar[str]
    daemons: ClassVar[tuple[str, str]]  # the names of the queue's daemon and of the hosts'
    commands: ClassVar[Mapping[str, str]]  # name: module:function
    defaults: ClassVar[Mapping[str, float]]  # what the administrator sets
    brisk: ClassVar[Mapping[str, float]]  # the same for tests that cannot wait as long as sites do
    queues: ClassVar[Sequence[str]]
    port: ClassVar[int]
    home_is_own: ClassVar[bool] = True  # each host has its own folder for what is under way

    def __init__(
        self,
        folder: Path,
        hosts: Hosts | None = None,
        settings: Mapping[str, float] | None = None,
        cpus: int = 4,
        gpus: int = 0,
        memory_mb: int = 8000,
    ) -> None:
        self._settings = {"beat_timeout": 5.0, "host_patience": 300.0, **self.defaults}
        unknown = (settings or {}).keys() - self._settings.keys()
        assert not unknown, f"no such settings: {sorted(unknown)}"
        self._settings |= settings or {}
        self.folder = folder / self.vendor
        self.bin = self.folder / "bin"
        self._hosts = hosts
        self._room = {"cpus": cpus, "gpus": gpus, "memory_mb": memory_mb}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.server = CTL if hosts else socket.gethostname()
        self.nodes = hosts.names if hosts else (self.server,)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end_daemons()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemons; come back when every host has told that it is there."""
        self._write()
        programs: list[tuple[str, list[str | Path]]]
        programs = [(self.server, [self.bin / self.daemons[0]])]
        programs += [(node, [self.bin / self.daemons[1], node]) for node in self.nodes]
        for host, argv in programs:
            if self._hosts:
                self._hosts.daemon(host, *argv)
            else:
                self._spawn(argv)
        until((self.folder / "port").exists)
        until(lambda: len(self._admin("nodes").split()) == len(self.nodes))

    def stop(self) -> None:
        """End every job and, on this machine, the daemons; hosts end theirs themselves."""
        try:
            self.cancel_all()
        finally:
            self._end_daemons()

    def cancel_all(self) -> None:
        """End every job, and come back when none is left; there is no history either."""
        self._admin("cancel")
        until(lambda: self._admin("left") == "0")
        self._admin("forget")

    @property
    def env(self) -> dict[str, str]:
        """What puts the commands first on PATH."""
        before = f"{self._hosts.bin}:" if self._hosts else ""
        return {"PATH": f"{self.bin}:{before}{os.environ['PATH']}:{SYSTEM_PATH}"}

    def run(
        self,
        *argv: str | Path,
        host: str = CTL,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: str | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does, on a host or on this machine."""
        env, cwd = {**self.env, **(env or {})}, cwd or self.folder
        if self._hosts:
            return self._hosts.run(host, argv, env, cwd, timeout, stdin)
        return subprocess.run(
            list(map(str, argv)),
            env={**os.environ, **env},
            cwd=cwd,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def wait(self, *keys: str) -> None:
        """Come back when these jobs have ended: `12`, `12[3]`, or `12[]` for a whole array."""
        self._admin("wait", *keys)

    def preempt(self, key: str) -> None:
        """Suspend a running job as the system does for one that matters more."""
        self._admin("preempt", key)

    def resume(self, key: str) -> None:
        """Let it go on."""
        self._admin("resume", key)

    def _admin(self, *words: str) -> str:
        done = self.run(self.bin / "batch-admin", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _end_daemons(self) -> None:
        """Let go of their stdin: they end their jobs and themselves, as when this process dies."""
        for process in self._processes:
            assert process.stdin
            process.stdin.close()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def _spawn(self, argv: list[str | Path]) -> None:
        with (self.folder / f"{Path(argv[0]).name}.log").open("ab") as log:
            words = [*map(str, argv), "--owned"]
            self._processes.append(
                subprocess.Popen(
                    words,
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _write(self) -> None:
        self.bin.mkdir(parents=True)
        place = {"folder": str(self.folder)}
        programs = {self.daemons[0]: SERVER, self.daemons[1]: NODE}
        bodies = {name: body.format(**place) for name, body in programs.items()}
        commands = {**self.commands, "batch-admin": "batch.admin:main"}
        for name, target in commands.items():
            module, _, function = target.partition(":")
            bodies[name] = COMMAND.format(module=module, function=function, **place)
        for name, body in bodies.items():
            path = self.bin / name
            text = PROGRAM.format(python=sys.executable, root=ROOT, vendor=self.vendor, body=body)
            path.write_text(text)
            path.chmod(0o755)
        (self.folder / "site.json").write_text(json.dumps(self._site(), indent=1))

    def _site(self) -> dict[str, object]:
        addresses = self._hosts.addresses if self._hosts else {self.server: "127.0.0.1"}
        own = self._hosts and self.home_is_own
        home = f"/run/{self.vendor}" if own else str(self.folder / "home")
        return {
            "vendor": self.vendor,
            "server": self.server,
            "bind": addresses[self.server],
            "port": self.port if self._hosts else 0,
            "home": home,
            "bin": str(self.bin),
            "settings": self._settings,
            "queues": list(self.queues),
            "nodes": dict.fromkeys(self.nodes, self._room),
            "binds": {node: addresses[node] for node in self.nodes},
        }
