"""Learn what an interpreter has installed, without importing any of it, and remember the answer."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torchloom.launch import importing, sockets
from torchloom.specs.dataclass import dataclass

NEEDED = ("torch", "torchloom", "threadpoolctl")
_LIMIT = 60.0  # seconds, for an interpreter on a slow network disk
_SCRIPT = """
import importlib.util, json, site, sys
if not sys.flags.safe_path:
    del sys.path[0]
user = site.getusersitepackages()
folders = [*site.getsitepackages(), *([user] if user in sys.path else [])]
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"folders": folders, "missing": missing}))
"""
_BASIC = ("PATH", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "XDG_CACHE_HOME")


@dataclass(frozen=True, slots=True)
class Probe:
    """Where an interpreter's packages lie, their state, and which of ours it lacks."""

    folders: tuple[str, ...]
    fingerprint: list[Any]
    missing: tuple[str, ...]


def basics(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process is not left without, whatever it is for."""
    return {name: env[name] for name in _BASIC if name in env}


def locate(interpreter: str, env: Mapping[str, str], cwd: str) -> str | None:
    """Return the file that executing this word in this folder would start, if there is one."""
    if os.sep in interpreter:
        interpreter = os.path.join(cwd, interpreter)
    found = shutil.which(interpreter, path=env.get("PATH", os.defpath))
    return found and os.path.abspath(os.path.join(cwd, found))


def probe(interpreter: str, flags: tuple[str, ...], env: Mapping[str, str]) -> Probe:
    """Return what the interpreter has; asked once, and again when its packages have changed."""
    read = importing.import_environment(env)
    # not by PATH: a run has its own folder in it, and each would ask anew, for 23 ms
    name = importing.digest(interpreter, flags, _state(interpreter), read)
    path = sockets.socket_path(f"probe-{name}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(path.read_text())
        known = Probe(tuple(data["folders"]), data["fingerprint"], tuple(data["missing"]))
        if importing.fingerprint(known.folders) == known.fingerprint:
            return known
    found = _ask(interpreter, flags, basics(env) | read)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(found)))
    partial.replace(path)
    return found


def _ask(interpreter: str, flags: tuple[str, ...], env: Mapping[str, str]) -> Probe:
    import subprocess

    words = [interpreter, *flags, "-c", _SCRIPT, *NEEDED]
    try:
        done = subprocess.run(
            words,
            cwd=os.sep,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT,
            check=True,
        )
        said = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):  # no Python, or a broken one
        return Probe((), [], NEEDED)
    folders = tuple(said["folders"])
    return Probe(folders, importing.fingerprint(folders), tuple(said["missing"]))


def _state(interpreter: str) -> list[Any]:
    """Return what changes when the interpreter or its virtual environment is replaced."""
    seen: list[Any] = []
    home = os.path.dirname(os.path.dirname(interpreter))
    for path in (interpreter, os.path.join(home, "pyvenv.cfg")):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            seen.append([os.path.realpath(path), found.st_mtime_ns, found.st_size, found.st_ino])
    return seen
