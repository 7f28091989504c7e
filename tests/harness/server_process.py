"""A server that a test runs: stopped with force, paused, and gone on with."""

import os
import signal
import subprocess


class Served:
    """One process, or none."""

    _process: "subprocess.Popen[bytes] | None" = None

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
