"""Write what a rank prints a second time, where torchrun's users look for it.

torchrun keeps `LOG_DIR/RUN/attempt_N/LOCAL_RANK/{stdout,stderr}.log` on every host.
"""

from pathlib import Path

from torchloom.launch.logfiles import STREAMS
from torchloom.launch.rank import Log


class CopiedLog:
    """A rank's log, with a copy of some of its streams in another folder."""

    def __init__(self, log: Log, folder: Path, streams: int) -> None:
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
