"""Note which functions of torchloom are called, in every process of an interpreter's folder.

`paths.py` puts this file into an environment of its own, whose interpreters import it at their
start. The first byte of MARK is the number of the path that is being traced; 0: none is. Forks keep
the profile function and the shared byte; each first call is one line in a file of the process, so
that nothing is lost with a process that is killed.
"""

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType

FOLDER = Path(__file__).with_name("traced")
MARK = FOLDER / "mark"
_SOURCE = (FOLDER / "source").read_text() + os.sep
_OPTIMIZED = 1  # the flag of a function's code; bodies of modules and classes lack it
_seen: set[tuple[int, int, object]] = set()


def install() -> None:
    """Trace this thread and those that it starts; a program that was hidden may do it again."""
    threading.setprofile(profile)
    sys.setprofile(profile)


def profile(frame: FrameType, event: str, _arg: object) -> None:
    """Note a function that is called while a path is traced, once a path and process."""
    path = _mark[0]
    if not path or event != "call":
        return
    code = frame.f_code
    key = (path, os.getpid(), code)
    if key in _seen:
        return
    is_ours = code.co_filename.startswith(_SOURCE) and code.co_flags & _OPTIMIZED
    if is_ours and _is_import(frame):
        return  # it may be called again, and then it counts
    _seen.add(key)
    if is_ours:
        _note(path, code.co_filename.removeprefix(_SOURCE), code.co_qualname)


def _is_import(frame: FrameType | None) -> bool:
    """Tell whether a call is made by the body of a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _note(path: int, file: str, function: str) -> None:
    own = FOLDER / str(os.getpid())
    with open("/proc/self/cmdline", "rb") as words:
        shown = words.read().replace(b"\0", b" ").decode(errors="replace").strip()
    line = f"{path}\t{file}\t{function}\t{shown}\n"
    out = os.open(own, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, line.encode())
    os.close(out)


with MARK.open("r+b") as _file:
    _mark = mmap.mmap(_file.fileno(), 1)
install()
