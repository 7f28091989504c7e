"""Bring an agent to every node of a job, by whatever launcher the site has, and watch the bringers.

What they print is kept in the run's folder: it is the evidence when a node does not come up.
"""

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts.host_lists import index_of
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.variables import AGENT_VARIABLE, NODE_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:  # a launch on one host starts no agents elsewhere, and must not wait for imports
    import subprocess

    from torchloom.launch.assembly.launchers import Assembled, LauncherCommand

_PATIENCE = 5.0  # seconds in which a carrier must have ended after its agents
# What belongs to this process, this shell or this host, and would mislead on another.
_OWN = (
    r"(PMI|PMIX|PRTE|OMPI|HYDRA|PALS|SLURM_(PROCID|LOCALID|NODEID|STEP|TASK|GTIDS|SRUN|LAUNCH))"
    r"|(SSH|DBUS|TMUX|BASH_FUNC|XDG_SESSION)_"
    r"|(HOSTNAME|DISPLAY|XAUTHORITY|TERM|SHLVL|_|OLDPWD|PWD|HOME|USER|LOGNAME|SHELL|MAIL|TMPDIR)$"
)


@dataclass(slots=True)
class RunningCarrier:
    """One carrier: the process, which hosts it brings an agent to, what it printed."""

    process: "subprocess.Popen[bytes]"
    hosts: tuple[str, ...]
    log: Path


class Carriers:
    """The processes that start a job's agents; none where the only agent is this host's."""

    def __init__(self, request: LaunchRequest, folder: Path, token: str) -> None:
        self._request = request
        self._folder = folder
        self._token = token
        self._running: list[RunningCarrier] = []

    def start(self) -> socket.socket:
        """Start them all; return the socket at which their agents will call."""
        from torchloom.launch.records.parcel import write_private

        listener = wire.listen_on(self._own_address())
        address = wire.LaunchAddress(host=listener.getsockname()[0], port=listener.getsockname()[1])
        plan = carry(self._request, self._folder, str(address), self._variables())
        for path, text in plan.files:
            write_private(path, text)  # it may hold variables
        for number, command in enumerate(plan.commands):
            self._run(command, self._folder / f"carrier-{number}.log")
        return listener

    def proof(self, challenge: str) -> str:
        """Return what shows an agent that this is its launch process."""
        return wire.proof(self._token, "launcher", challenge) if self._token else ""

    def reap(self) -> None:
        for one in self._running:
            one.process.poll()

    def failed(self, missing: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the nodes that will not come, since what should bring them has ended; and why."""
        for one in self._running:
            if one.process.returncode is not None:
                for name in missing:
                    if not one.hosts or index_of(name, one.hosts) is not None:
                        yield name, f"{self._launcher()} ended: {_tail(one.log) or _how(one)}"

    def last_words(self, name: str) -> str:
        """Return what a node's carrier printed last."""
        mine = (one for one in self._running if not one.hosts or name in one.hosts)
        return next((tail for one in mine if (tail := _tail(one.log))), "")

    def close(self, gone: Sequence[str] = ()) -> None:
        """Release the carriers; signal those that do not end soon, at once without an agent."""
        import subprocess

        for one in self._running:
            _hang_up(one.process.stdin)
            if one.hosts and index_of(one.hosts[0], gone) is not None:
                one.process.terminate()
        for signum in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _PATIENCE
            for one in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
            for one in self._running:
                one.process.send_signal(signum)  # nothing, once it has ended

    def _launcher(self) -> str:
        return self._request.carrier.launcher if self._request.carrier else "agent"

    def _own_address(self) -> str:
        """Return where agents reach this host, as seen from the first other one that is known."""
        others = [name for name in self._request.nodes if index_of(host_name(), [name]) is None]
        for name in others:
            with contextlib.suppress(OSError):  # a name that means nothing: its carrier will say so
                return wire.own_address_towards(name)
        return settings.LOOPBACK

    def _variables(self) -> dict[str, str]:
        """Return what agents and their ranks must find in their environment."""
        env = settings.environment()
        own = {AGENT_VARIABLE: self._request.app_id, TOKEN_VARIABLE: self._token}
        return (
            portable(env) | dict(self._request.carrier.env if self._request.carrier else {}) | own
        )

    def _run(self, command: "LauncherCommand", log: Path) -> None:
        import subprocess

        env = {
            name: value for name, value in settings.environment().items() if name != NODE_VARIABLE
        }
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command.argv,
                env=env | dict(command.env),
                cwd=self._request.cwd,
                stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if command.stdin is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(command.stdin.encode(errors="surrogateescape"))
                process.stdin.flush()  # and stays open: its end is the launcher's
        hosts = (command.host,) if command.host else ()
        self._running.append(RunningCarrier(process, hosts, log))


def carry(
    request: LaunchRequest, folder: Path, address: str, variables: Mapping[str, str]
) -> "Assembled":
    """Return the commands that start one agent a node. Pure."""
    from torchloom.launch.assembly import assemble
    from torchloom.launch.assembly.launchers import AssemblyRequest
    from torchloom.launch.assembly.topology import HostTopology
    from torchloom.launch.environments.world import World

    carrier = request.carrier
    assert carrier is not None
    lists = {name: tuple(carrier.world[name]) for name in ("hosts", "slots", "notes")}
    world = World(**{**carrier.world, **lists})
    by_itself = carrier.launcher in ("srun", "blaunch")  # they hand on all of their environment
    own = {AGENT_VARIABLE, TOKEN_VARIABLE, *carrier.env}
    env = {name: text for name, text in variables.items() if name in own or not by_itself}
    return assemble(
        carrier.launcher,
        world,
        AssemblyRequest(
            command=(sys.executable, "-P", "-m", "torchloom.launch.agent.node", address),
            topology=HostTopology(request.nodes, (1,) * len(request.nodes)),
            env=env,
            cwd=request.cwd,
            cpu_bind=carrier.cpu_bind,
            flags=carrier.flags,
            hostfile=folder / "hostfile",
            own_host=host_name(),
            job_id=request.app_id,
            as_root=os.getuid() == 0,
        ),
    )


def portable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mean the same on every host of a job."""
    return {name: value for name, value in env.items() if not re.match(_OWN, name)}


def _tail(log: Path) -> str:
    """Return the last line that says something."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")
    return ""


def _how(one: RunningCarrier) -> str:
    code = one.process.returncode
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _hang_up(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
