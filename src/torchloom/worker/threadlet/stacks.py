"""What the threads of this process do, told by one of them: it answers when it gets the GIL."""

import sys
import threading
from types import FrameType

from torchloom.bus.messages import Frame, Head, OwnStacks, Thread

_DEPTH = 64  # calls of a stack that are told, the innermost ones
_THREADS = 64


def own_stacks(head: Head, request: str) -> OwnStacks:
    """Return the stacks of all threads but the one that asks."""
    main, here = threading.main_thread().ident, threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    threads = (
        Thread(names.get(number, ""), number == main, _frames(frame))
        for number, frame in found[:_THREADS]
        if number != here
    )
    return OwnStacks(head, request, tuple(threads))


def _frames(innermost: FrameType) -> tuple[Frame, ...]:
    found: list[Frame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        found.append(Frame(code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(found)
