"""Write what several growing files get into one file."""

import io
import os
import threading

_PIECE = 1 << 16
_PAUSE = 0.1  # seconds between two looks at the files


class Tee:
    """Copies what is appended to files into another one, on a thread, until it is closed.

    Args:
        out: Where it is written; closed at the end.
        sources: The files.
    """

    def __init__(self, out: io.FileIO, *sources: str) -> None:
        if not sources:
            raise ValueError("a tee needs at least one file to read")
        self.out = out
        self.streams = [io.FileIO(source, "rb") for source in sources]
        for stream in self.streams:
            os.set_blocking(stream.fileno(), False)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def write(self, s: bytes) -> int:
        """Write something else in between."""
        with self._lock:
            return self.out.write(s)

    def close(self) -> None:
        """Copy what is left, then close all files."""
        if self.out.closed:
            return
        self._over.set()
        self.thread.join()
        for file in (*self.streams, self.out):
            file.close()

    def _copy(self) -> None:
        while True:
            is_over = self._over.is_set()  # asked before the look, which then is the last one
            pieces = [piece for stream in self.streams if (piece := stream.read(_PIECE))]
            for piece in pieces:
                self.write(piece)
            if not pieces:
                if is_over:
                    return
                self._over.wait(_PAUSE)
