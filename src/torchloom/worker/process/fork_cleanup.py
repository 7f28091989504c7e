"""Shed what a fork of the zygote inherited and a fresh interpreter would not have."""

import contextlib
import faulthandler
import gc
import importlib
import io
import linecache
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TextIO

from torchloom.launch.keeper import spawn
from torchloom.launch.keeper.fingerprint import import_environment, locate
from torchloom.launch.keeper.python_command import COLD_VARIABLES, PythonCommand, cold_variable
from torchloom.specs.dataclass import dataclass

_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_kept: list[object] = []  # streams that a library may still hold


@dataclass(frozen=True, slots=True)
class ZygoteOrigin:
    """What the zygote was started as, and holds."""

    interpreter: str
    flags: tuple[str, ...]
    env: Mapping[str, str]
    path: tuple[str, ...]  # sys.path without the folder of the program and PYTHONPATH
    coerced: Mapping[str, str]  # variables the interpreter set for itself at its start
    libraries: Any  # a ThreadpoolController that knows all loaded ones
    modules: frozenset[str] = frozenset()  # names without a dot that are imported
    elsewhere: frozenset[str] = frozenset()  # those of them that are not installed


_origin: ZygoteOrigin | None = None


def remember(origin: ZygoteOrigin) -> None:
    """Note what this process is, before it is forked."""
    global _origin
    _origin = origin


def shed() -> None:
    """Drop what has been looked up so far; done once, since in a rank it would copy pages."""
    importlib.invalidate_caches()
    linecache.clearcache()


def cold_because(command: PythonCommand, env: Mapping[str, str]) -> str | None:
    """Return why a fork of this process would not be what the command asks for, if so."""
    origin = _known()
    if (why := command.cold_because()) is not None:
        return why
    for name in COLD_VARIABLES:
        if env.get(name):
            return cold_variable(name)
    if locate(command.interpreter, env, os.getcwd()) != origin.interpreter:
        return f"{command.interpreter} is not {origin.interpreter}"
    if command.flags != origin.flags:
        return f"flags {command.flags} are not {origin.flags}"
    ours, theirs = import_environment(origin.env), import_environment(env)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"{name} differs"
    return _shadowed(_folders(command, env), origin)


def renew(command: PythonCommand, env: Mapping[str, str]) -> None:
    """Make this fork look like an interpreter that was just started for the command."""
    origin = _known()
    _take_environment({**env, **_coerced(origin, env)})
    spawn.show(command.argv, env)
    _handle_signals()
    _open_streams(unbuffered="-u" in command.flags or bool(env.get("PYTHONUNBUFFERED")))
    sys.path[:] = [*python_path(env), *origin.path]
    _draw_anew()
    _count_threads(origin.libraries, env)
    _forget_places()
    gc.enable()


def _known() -> ZygoteOrigin:
    if _origin is None:
        raise RuntimeError("this process is not a fork of a zygote")
    return _origin


# What the program would import from its own folders.


def _folders(command: PythonCommand, env: Mapping[str, str]) -> list[str]:
    own = os.path.dirname(os.path.realpath(command.target)) if command.what == "file" else "."
    return [*([] if sys.flags.safe_path else [own]), *python_path(env)]


def python_path(env: Mapping[str, str]) -> list[str]:
    if sys.flags.ignore_environment or not env.get("PYTHONPATH"):
        return []
    return list(dict.fromkeys(map(os.path.abspath, env["PYTHONPATH"].split(os.pathsep))))


def _shadowed(folders: Sequence[str], origin: ZygoteOrigin) -> str | None:
    """Return which file of the user's a fresh interpreter would import instead of ours, or which
    of ours is the program's own: what it does when it is imported may be meant for a rank."""
    loaded, own = origin.modules, {os.path.realpath(folders[0]), os.getcwd()}
    for folder in folders:
        own_names = origin.elsewhere if os.path.realpath(folder) in own else frozenset()
        settled = set()
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder):
                name, path = entry.partition(".")[0], os.path.join(folder, entry)
                if name not in loaded or not (file := _importable(path)):
                    continue
                if not _is_same(file, sys.modules[name]):
                    return f"{path} comes before the installed {name}"
                if name in own_names:
                    return f"{path} is the program's own"
                settled.add(name)
        loaded -= settled  # what comes later on the path is not looked at
    return None


def _importable(path: str) -> str:
    """Return the file that an import would take for an entry of a folder, if it would."""
    if os.path.isdir(path):
        path = os.path.join(path, "__init__.py")
    suffixes = tuple(importlib.machinery.all_suffixes())
    return path if path.endswith(suffixes) and os.path.exists(path) else ""


def _is_same(path: str, module: ModuleType) -> bool:
    origin = getattr(module.__spec__, "origin", None) or ""
    return os.path.exists(origin) and os.path.samefile(path, origin)


# What is different in every process.


def _coerced(origin: ZygoteOrigin, env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in origin.coerced.items() if name not in env}


def _take_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


def _handle_signals() -> None:
    """Put Python's own handlers on top of the defaults."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if faulthandler.is_enabled():
        faulthandler.disable()
        faulthandler.enable(file=2)


def _open_streams(unbuffered: bool) -> None:
    """Open 0, 1 and 2 as the interpreter does, and lead loggers from the old ones to the new."""
    old = {
        id(stream): name for name in ("stdin", "stdout", "stderr") if (stream := getattr(sys, name))
    }
    encoding = sys.stdin.encoding, sys.stdin.errors
    _kept.extend((sys.stdin, sys.stdout, sys.stderr))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if name == "stderr" else encoding[1]
        stream = _open(fd, name, encoding[0], errors, unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for reference in logging._handlerList:  # type: ignore[attr-defined]
        handler = reference()
        held = old.get(id(getattr(handler, "stream", None)))
        if held and "stream" in vars(handler):
            handler.stream = getattr(sys, held)


def _open(fd: int, name: str, encoding: str, errors: str | None, unbuffered: bool) -> TextIO | None:
    writes = fd != 0
    raw_only = unbuffered and writes
    try:
        binary: Any = open(fd, "wb" if writes else "rb", 0 if raw_only else -1, closefd=False)  # noqa: SIM115
    except OSError:
        return None
    raw = binary if raw_only else binary.raw
    raw.name = f"<{name}>"
    by_line = not unbuffered and (raw.isatty() or fd == 2)
    text = io.TextIOWrapper(
        binary, encoding, errors, newline="\n", line_buffering=by_line, write_through=unbuffered
    )
    text.mode = "w" if writes else "r"  # type: ignore[misc]
    return text


def _draw_anew() -> None:
    """Seed what an import seeded from the system, so that no two forks draw the same."""
    random.seed()
    if (torch := _loaded("torch")) is not None:
        torch.default_generator.seed()
    if (numpy := _loaded("numpy.random")) is not None:
        numpy.seed()
    if (process := _loaded("multiprocessing.process")) is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)


def _count_threads(libraries: Any, env: Mapping[str, str]) -> None:
    """Give BLAS the threads it would start with; OpenMP's count is part of the zygote already."""
    cpus = len(os.sched_getaffinity(0))
    wanted = next((n for name in _BLAS_VARIABLES if (n := _number(env.get(name, ""))) > 0), cpus)
    for library in libraries.lib_controllers:
        if library.internal_api == "openblas":
            library.set_num_threads(min(wanted, cpus))


def _number(text: str) -> int:
    digits = text.strip().partition(",")[0]
    return int(digits) if digits.isdecimal() else 0


def _forget_places() -> None:
    """Drop what was looked up for the zygote's own environment."""
    if (tempfile := _loaded("tempfile")) is not None:
        tempfile.tempdir = None
        tempfile._name_sequence = None


def _loaded(name: str) -> Any:
    return sys.modules.get(name)
