"""Let the program's first frame be the bottom of the stack, as it is in an interpreter of its own.

`inspect.stack()`, a warning's `stacklevel`, faulthandler and print_stack all walk down to it. The
interpreter has no call for this, so the link is cut in memory: only on versions whose layout is
known, and only if what is found there is what must be there. Otherwise our frame stays visible.
"""

import ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType

_IN_OBJECT = 24  # where a frame object points to the interpreter's own frame
_PREVIOUS = {(3, 11): 48, (3, 12): 8, (3, 13): 8}  # where that points to the one below
_WITH_ENTRY = ((3, 12), (3, 13))  # the first frame of a C call stands on an empty one


def hide_caller(module: "ModuleType") -> None:
    """Cut the link below the module's first frame, which the caller is about to enter through C."""
    caller = sys._getframe(1)
    offset = _PREVIOUS.get(sys.version_info[:2])
    if offset is None or sys.implementation.name != "cpython":
        return

    def entered(frame: "FrameType", event: str, _arg: object) -> None:
        if event == "call" and frame.f_globals is module.__dict__:
            sys.setprofile(None)
            _cut(frame, caller, offset)

    sys.setprofile(entered)


def _cut(frame: "FrameType", caller: "FrameType", offset: int) -> None:
    link = _word(id(frame) + _IN_OBJECT).value + offset
    below = _word(id(caller) + _IN_OBJECT).value
    if sys.version_info[:2] in _WITH_ENTRY and _word(link).value != below:
        link = _word(link).value + offset
    if _word(link).value == below:
        _word(link).value = 0


def _word(address: int) -> ctypes.c_size_t:
    return ctypes.c_size_t.from_address(address)
