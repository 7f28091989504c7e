"""A time of day that a test sets while processes run, for all of them at once.

libfaketime is of no use here: under its file of a time a plane does not start, and at a step of the
clock it has sleeps fail. What is preloaded instead is built by the C compiler of the machine.
"""

import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """What processes with its environment take for the time of day, and for nothing else."""

    def __init__(self, folder: Path) -> None:
        self._file, self._library = folder / "clock", folder / "libclock.so"
        self._file.write_bytes(bytes(8))
        words = ["cc", "-shared", "-fPIC", "-O2", f'-DCLOCK_FILE="{self._file}"']
        subprocess.run([*words, "-o", self._library, SOURCE, "-ldl"], check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library)}

    def set(self, ahead: float) -> None:
        """Have it be so many seconds ahead of the real one, or behind; it is one write."""
        fd = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(fd, struct.pack("<q", round(ahead * 1e9)), 0)
        finally:
            os.close(fd)

    def is_of(self, pid: int) -> bool:
        """Tell whether a process lives by it, by what it has mapped."""
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it has just ended
            return False
        return str(self._library) in maps and str(self._file) in maps
