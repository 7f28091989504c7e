"""Show what a rank prints where its agent was started, as torchrun shows its own host's ranks."""

import os
import select
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchloom.launch.logreader import STATES, WholeLines
from torchloom.launch.rank import Log

if TYPE_CHECKING:
    from torchloom.launch.sites import NoiseFilter

_FD = {"stdout": 1, "stderr": 2}
_PIECE = select.PIPE_BUF  # bytes that an output takes at once when it takes any
_PATIENCE = 1000  # milliseconds for a reader that does not read; the agent has more to do


class ShownLog:
    """A rank's log that is printed as well, by whole lines behind a prefix or as it comes.

    Behind a prefix a progress bar is a state a second, as `WholeLines` has it.
    `before` has the prefix of each stream; one without is not shown. What is read by nobody is not
    shown either, nor what is noise, for which only whole lines are looked at: the log has it.
    """

    def __init__(
        self, log: Log, before: Mapping[str, str | None], noise: "NoiseFilter | None" = None
    ) -> None:
        self.directory = log.directory
        self._log = log
        self._before = {
            stream: text.encode() for stream, text in before.items() if text is not None
        }
        self._partial = dict.fromkeys(self._before, b"")  # of those without a prefix
        self._lines = {stream: WholeLines(STATES) for stream in self._before}
        self._noise = noise
        self._patience = _PATIENCE

    @property
    def lost(self) -> int:
        return self._log.lost

    def write(self, stream: str, data: bytes) -> None:
        self._log.write(stream, data)
        prefix = self._before.get(stream)
        if prefix is None:
            return
        if prefix:
            whole_lines = self._lines[stream].take(data)
            data = self._dressed(prefix, [line + b"\n" for line in whole_lines])
        elif self._noise is not None:
            whole, newline, self._partial[stream] = (self._partial[stream] + data).rpartition(b"\n")
            data = self._dressed(prefix, (whole + newline).splitlines(keepends=True))
        self._print(stream, data)

    def close(self) -> None:
        for stream, prefix in self._before.items():
            rests = [line + b"\n" for line in self._lines[stream].end()] if prefix else []
            if rest := self._partial[stream]:
                rests, self._partial[stream] = [rest], b""
            self._print(stream, self._dressed(prefix, rests))
        self._log.close()

    def _dressed(self, prefix: bytes, lines: list[bytes]) -> bytes:
        if self._noise is not None:
            lines = list(filter(self._noise.keeps, lines))
        return b"".join(prefix + line for line in lines)

    def _print(self, stream: str, data: bytes) -> None:
        """Print while somebody reads; an agent that waits for a reader hears nothing else."""
        output = select.poll()
        output.register(_FD[stream], select.POLLOUT)
        try:
            while data and output.poll(self._patience):
                data = data[os.write(_FD[stream], data[:_PIECE]) :]
                self._patience = _PATIENCE
        except OSError:  # nobody looks any more
            return
        if data:
            self._patience = 0  # until somebody reads again
