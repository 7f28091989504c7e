"""What the plane's processes are: the commands, and what each is told by its environment."""

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchloom import accounts
from torchloom.accounts import Account
from torchloom.bus import subjects
from torchloom.bus.address import (
    ADDRESS_VARIABLE,
    AGENT_ID_VARIABLE,
    AUTHORITY_VARIABLE,
    CREDENTIALS_VARIABLE,
)
from torchloom.weaver.launching import job_environment
from torchloom.weaver.plane import nats_server
from torchloom.weaver.plane.credentials import WEAVER, Credentials
from torchloom.weaver.plane.discovery import Address
from torchloom.weaver.plane.supervise import Part

NATS, AGENT, SERVER = "nats", "agent", "server"
_ACCOUNT_LOG = "plane/logs/agent.log"  # in the state folder of an account
NAMES = (NATS, WEAVER, AGENT, SERVER)
COMMANDS: Mapping[str, tuple[str, ...]] = {
    WEAVER: (sys.executable, "-P", "-m", "torchloom.weaver"),
    AGENT: (sys.executable, "-P", "-m", "torchloom.launch.node_agent"),
    SERVER: (sys.executable, "-P", "-m", "torchloom.server"),
}


@dataclass(frozen=True, slots=True)
class Workshop:
    """Makes the parts of one plane."""

    keys: Credentials
    folder: Path  # of sockets and what is made anew at every start
    logs: Path
    env: Mapping[str, str]
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: COMMANDS)

    def nats(self, address: Address, certificate: nats_server.Certificate | None = None) -> Part:
        """Return a NATS server of our own for an address."""
        path = self.folder / "nats.conf"
        log = self._log(NATS)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = nats_server.configuration(self.keys, address.host, address.port, log, certificate)
        nats_server.write_configuration(path, text)
        return Part(NATS, (nats_server.program(), "-c", str(path)), self.env, log)

    def part(self, name: str, address: Address, authority: Path | None = None) -> Part:
        """Return the weaver or the node agent, with what it must know to reach the bus."""
        secret = self.keys.user(name) if name == WEAVER else self.keys.agent(agent_id())
        told = {ADDRESS_VARIABLE: address.url, CREDENTIALS_VARIABLE: str(secret)}
        if name == AGENT:
            told[AGENT_ID_VARIABLE] = agent_id()
        if authority is not None:
            told[AUTHORITY_VARIABLE] = str(authority)
        return Part(name, self.commands[name], {**self.env, **told}, self._log(name))

    def account(self, account: Account, line: Callable[[socket.socket], None]) -> Part:
        """Return the agent of an account's jobs: a process of that account, with a log there."""
        name = account_agent(account.name)
        words = (*self.commands[AGENT], "--line", "3", "--agent", name)
        argv = accounts.command(account, words, _ACCOUNT_LOG, os.getpid(), lines=1)
        env = accounts.environment(account, job_environment(self.env))
        return Part(f"{AGENT}-{account.name}", tuple(argv), env, Path(os.devnull), line)

    def server(self, host: str, certificate: nats_server.Certificate | None = None) -> Part:
        """Return the HTTP server at an address; with a certificate it speaks TLS."""
        words = ["--host", host, "--runtime", str(self.folder)]
        if certificate is not None:
            shown = (certificate.chain, certificate.key, certificate.authority)
            for name, path in zip(("--tls-cert", "--tls-key", "--tls-ca"), shown, strict=True):
                words += [name, str(path)]
        return Part(SERVER, (*self.commands[SERVER], *words), self.env, self._log(SERVER))

    def _log(self, name: str) -> Path:
        return self.logs / f"{socket.gethostname()}-{name}.log"


def agent_id() -> str:
    """Return the name of this node's agent: the host's, as far as a subject can hold it."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64] or "node"


def account_agent(account: str) -> str:
    """Return the name of the agent here of an account's jobs."""
    return subjects.agent_of_account(socket.gethostname(), account)
