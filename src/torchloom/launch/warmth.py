"""How a job's ranks come to life on one host: forked by a zygote, or executed; and why."""

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torchloom.launch import warm
from torchloom.launch.orders import ReplicaOrder
from torchloom.launch.probe import locate, probe
from torchloom.launch.python_command import PythonCommand
from torchloom.launch.variables import STORE_VARIABLE, UPLINK_VARIABLE

COLD: Final = "cold"  # the keeper is to be a plain fork
_START = Path(__file__).parent.parent / "worker" / "start.py"  # what runs a program in a fresh one
_NO_GAIN = "no zygote is started for a program that does not name torch"
_TELLING = (b"torch", b"lightning", b"transformers", b"accelerate")


class Warmth:
    """Decides once, for the first command of a job, whether its keeper is a zygote's fork."""

    def __init__(self) -> None:
        self._awaited: warm.Zygote | None = None
        self.is_warm = False
        self.said = COLD

    def keeper(self, request: Mapping[str, Any], order: ReplicaOrder) -> socket.socket | str | None:
        """Return the connection to a warm keeper, COLD, or nothing while its zygote comes up."""
        command = PythonCommand.parse(order.argv)
        zygote = self._awaited or warm.find(command, request["env"], order.cwd)
        if isinstance(zygote, warm.Cold) or command is None:
            return self._cold(zygote.why if isinstance(zygote, warm.Cold) else "")
        if self._awaited and zygote.is_coming():
            return None
        found = zygote.keeper(request)
        if isinstance(found, socket.socket):
            self.is_warm = True
            self.said = "cold: a zygote was started for it" if self._awaited else "warm"
            return found
        if not is_worth_it(command, order.cwd, order.grouped):
            return self._cold(_NO_GAIN)
        if self._awaited is None:
            zygote.start()
            if order.grouped:  # one import for all ranks is faster than one for each
                self._awaited = zygote
                return None
        return self._cold(found.why)

    def words(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Sequence[str]:
        """Return what is executed: by an entry of ours where ranks meet or are watched."""
        is_seen = env.get(UPLINK_VARIABLE) and env.get("LOOM_ATTACH") != "0"
        if self.is_warm or not (is_seen or STORE_VARIABLE in env):
            return argv
        command = PythonCommand.parse(argv)
        if command is None or not _has_ours(command, env, cwd):
            return argv
        return command.through(str(_START))

    def _cold(self, why: str) -> str:
        self.said = f"{COLD}: {why}" if why else COLD
        return COLD


def is_worth_it(command: PythonCommand, cwd: str, grouped: bool) -> bool:
    """Tell whether a zygote would pay: a program that speaks of torch, or a group's module."""
    if command.what != "file":
        return grouped
    try:
        text = Path(cwd, command.target).read_bytes()
    except OSError:
        return False
    return any(word in text for word in _TELLING)


def _has_ours(command: PythonCommand, env: Mapping[str, str], cwd: str) -> bool:
    """Tell whether an interpreter has both torch and torchloom."""
    interpreter = locate(command.interpreter, env, cwd)
    if interpreter is None:
        return False
    if interpreter == os.path.abspath(sys.executable):
        return importlib.util.find_spec("torch") is not None
    missing = probe(interpreter, command.flags, env).missing
    return not {"torch", "torchloom"} & set(missing)
