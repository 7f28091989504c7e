"""Where the output of a node's ranks goes: files here, or frames to a host that has the folder."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from torchloom import settings
from torchloom.launch.descendants import Share
from torchloom.launch.frames import Message
from torchloom.launch.logcopies import CopiedLog
from torchloom.launch.logfiles import STREAMS, LogFiles
from torchloom.launch.logforward import ForwardedLog
from torchloom.launch.logshow import ShownLog
from torchloom.launch.rank import Log, Rank
from torchloom.launch.showing import Showing


class RankLogs:
    """The logs of one job's ranks on this node."""

    def __init__(self, share: Share, show: Showing | None, send: Callable[[Message], None]) -> None:
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

    def of(self, logs: str) -> Log:
        """Return the log of a rank that is about to start."""
        shared = self._folder if self._folder and not self._forwards else self._private
        return self.at(shared / logs, self.forwarded(logs))

    def at(self, directory: Path, forwarded: str) -> Log:
        """Return the log in a folder, as it was begun there."""
        if forwarded:
            return ForwardedLog(directory, forwarded, self._send)
        return LogFiles(directory)

    def dressed(self, rank: Rank) -> Log:
        """Return a rank's log with what is to happen to its output beside."""
        log, beside = rank.log, rank.beside
        if beside["copies"]:
            with contextlib.suppress(OSError):
                log = CopiedLog(log, Path(beside["copies"]), beside["copied"])
        if show := self._show:
            place = (rank.key.role, beside["rank"], rank.local_rank)
            before = {stream: show.before(stream, *place) for stream in STREAMS}
            log = ShownLog(log, before, self._noise)
        return log

    def say_hidden(self) -> None:
        """Say at the end how much was not shown because it is noise."""
        if self._noise and self._noise.note:
            with contextlib.suppress(OSError):  # nobody looks any more
                os.write(2, f"loom: {self._noise.note}\n".encode())
