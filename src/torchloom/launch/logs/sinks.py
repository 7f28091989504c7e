"""Where the output of a node's ranks goes: files here, or frames to a host that has the folder."""

import contextlib
import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom import settings
from torchloom.launch.agent.rank import AgentRank, RankLog
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.logs.display import Display
from torchloom.launch.logs.files import STREAMS, LogFiles
from torchloom.launch.logs.reader import STATES, WholeLines
from torchloom.launch.protocol import LaunchMessage, RankOutput, RankOutputEnd

if TYPE_CHECKING:
    from torchloom.launch.hosts.sites import NoiseFilter

MOST_UNSENT = 4 << 20  # bytes on their way to the launch process before the ranks must wait
_FD = {"stdout": 1, "stderr": 2}
_PIECE = select.PIPE_BUF  # bytes that an output takes at once when it takes any
_PATIENCE = 1000  # milliseconds for a reader that does not read; the agent has more to do


class ForwardedLog:
    """The log of one rank, written elsewhere; its error file is kept here until it is sent too."""

    def __init__(self, directory: Path, logs: str, send: Callable[[LaunchMessage], None]) -> None:
        self.directory = directory
        self.lost = 0
        self._logs = logs
        self._send = send

    def write(self, stream: str, data: bytes) -> None:
        text = data.decode("latin-1")  # any bytes survive, one character each
        self._send(RankOutput(self._logs, stream, text))

    def close(self) -> None:
        self._send(RankOutputEnd(self._logs))


class ShownLog:
    """A rank's log that is printed as well, by whole lines behind a prefix or as it comes.

    Behind a prefix a progress bar is a state a second, as `WholeLines` has it.
    `before` has the prefix of each stream; one without is not shown. What has no reader is not
    shown either, nor what is noise, for which only whole lines are looked at: the log has it.
    """

    def __init__(
        self, log: RankLog, before: Mapping[str, str | None], noise: "NoiseFilter | None" = None
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
        """Print while the output is read; an agent must not wait for a reader."""
        output = select.poll()
        output.register(_FD[stream], select.POLLOUT)
        try:
            while data and output.poll(self._patience):
                data = data[os.write(_FD[stream], data[:_PIECE]) :]
                self._patience = _PATIENCE
        except OSError:  # there is no reader any more
            return
        if data:
            self._patience = 0  # until it is read again


class CopiedLog:
    """A rank's log, with a copy of some of its streams in another folder."""

    def __init__(self, log: RankLog, folder: Path, streams: int) -> None:
        self.directory = log.directory
        self._log = log
        self._paths = {
            stream: folder / f"{stream}.log"
            for bit, stream in enumerate(STREAMS)
            if streams & 1 << bit
        }
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths.values():
            path.touch()

    @property
    def lost(self) -> int:
        return self._log.lost

    def write(self, stream: str, data: bytes) -> None:
        self._log.write(stream, data)
        if path := self._paths.get(stream):
            try:
                with open(path, "ab") as file:
                    file.write(data)
            except OSError:  # a full disk costs the copy; the log itself says what was lost
                del self._paths[stream]

    def close(self) -> None:
        self._log.close()


class RankLogs:
    """The logs of one job's ranks on this node."""

    def __init__(
        self, share: JobShare, show: Display | None, send: Callable[[LaunchMessage], None]
    ) -> None:
        self._private = settings.runtime_dir() / share.app_id / share.node
        self._show = show
        self._noise = show.filter if show else None
        self._send = send
        self._folder: Path | None = None
        self._forwards = False

    def settle(self, folder: str, marker: str) -> None:
        """Take notice of the log folder; where its marker is not seen, output is sent away."""
        self._folder = Path(folder)
        self._forwards = bool(marker) and not Path(marker).exists()

    def forwarded(self, logs: str) -> str:
        """Return where the output is written by another host, if it is."""
        return logs if self._forwards else ""

    def of(self, logs: str) -> RankLog:
        """Return the log of a rank that is about to start."""
        shared = self._folder if self._folder and not self._forwards else self._private
        return self.at(shared / logs, self.forwarded(logs))

    def at(self, directory: Path, forwarded: str) -> RankLog:
        """Return the log in a folder, as it was begun there."""
        if forwarded:
            return ForwardedLog(directory, forwarded, self._send)
        return LogFiles(directory)

    def dressed(self, rank: AgentRank) -> RankLog:
        """Return a rank's log with what is to happen to its output beside."""
        log, output = rank.log, rank.output
        if output.copies:
            with contextlib.suppress(OSError):
                log = CopiedLog(log, Path(output.copies), output.copied)
        if show := self._show:
            place = (rank.key.role, output.rank, rank.local_rank)
            before = {stream: show.before(stream, *place) for stream in STREAMS}
            log = ShownLog(log, before, self._noise)
        return log

    def say_hidden(self) -> None:
        """Say at the end how much was not shown because it is noise."""
        if self._noise and self._noise.note:
            with contextlib.suppress(OSError):  # there is no reader any more
                os.write(2, f"loom: {self._noise.note}\n".encode())
