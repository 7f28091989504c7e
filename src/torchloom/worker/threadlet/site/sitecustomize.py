"""Attach a threadlet to Python programs that a shell script or a wrapper of the job starts.

The folder of this file is first in the job's `PYTHONPATH`, so every interpreter imports it at its
start. It removes itself from `sys.path` and runs the `sitecustomize` that it hides.
"""

import os
import sys
from importlib.machinery import PathFinder


def _attach() -> None:
    try:
        from torchloom.worker.threadlet import attach

        attach.attach_the_first()
    except Exception as error:  # the program runs in any case
        if PathFinder.find_spec("torch", sys.path) is not None:
            sys.stderr.write(f"loom: this program runs without a threadlet: {error}\n")


def _hand_on() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    theirs = type(sys)("sitecustomize")
    theirs.__spec__, theirs.__loader__, theirs.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = theirs
    spec.loader.exec_module(theirs)


def _leave_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]


_leave_path()
if os.environ.get("LOOM_AGENT") and os.environ.get("LOOM_ATTACH") != "0":
    _attach()
_hand_on()
