"""What a Python process has taken in by the time torch is imported: two jobs share a zygote only
if all of it is equal.
"""

import contextlib
import json
import os
import resource
import shutil
import sys
from _blake2 import blake2b  # hashlib would load OpenSSL first: 3 ms
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from torchloom.launch.host import sockets
from torchloom.specs.dataclass import dataclass

_PREFIXES = (
    *("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "PYTORCH_"),
    "TORCH",
    *("ATEN_", "DNNL_", "ONEDNN_", "GOTO_", "BLIS_", "VECLIB_"),  # arithmetic below torch
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TOKENIZERS_"),  # if learned
    *("ACCELERATE_", "LIGHTNING_", "PL_", "TQDM_", "USE_"),
    *("NPY_", "NUMPY_", "SYMPY_", "MPMATH_", "NETWORKX_", "TRITON_", "LC_"),  # read on import
)
_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCHX_", "HF_TOKEN")  # by the program, not an import
_NAMES = (
    "HOME",
    "XDG_CACHE_HOME",
    "LANG",
    "LANGUAGE",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDNN_HOME",
    "ROCM_HOME",
    "CC",
    "CXX",
    "THP_MEM_ALLOC_ENABLE",  # read at torch's first allocation
)
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_CREDENTIALS = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Umask")
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


def import_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the interpreter, torch and what it imports read when they load."""
    return {name: value for name, value in sorted(env.items()) if _is_read_on_import(name)}


def _is_read_on_import(name: str) -> bool:
    if name.startswith(_LATER):
        return False
    return name.startswith(_PREFIXES) or name in _NAMES


def fingerprint(folders: Iterable[str]) -> list[Any]:
    """Return what changes when a package is installed, removed, upgraded or linked in."""
    seen: list[Any] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # a folder that is not there has nothing installed
            seen.append([folder, os.stat(folder).st_mtime_ns])
            with os.scandir(folder) as entries:
                seen.extend(sorted(_entry(entry) for entry in entries if _counts(entry.name)))
    return seen


def _counts(name: str) -> bool:
    return name.endswith((".pth", ".dist-info", ".egg-info", ".egg-link"))


def _entry(entry: "os.DirEntry[str]") -> list[Any]:
    found = entry.stat()
    return [entry.name, found.st_mtime_ns, found.st_size]


def surroundings() -> dict[str, Any]:
    """Return what a process inherits from its starter and torch, or the kernel, goes by."""
    return {
        "cgroup": _read("/proc/self/cgroup"),
        "session": _read("/proc/self/sessionid"),
        "out of memory": _read("/proc/self/oom_score_adj"),
        "credentials": _credentials(),
        "namespaces": [_link(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "root": _link("/proc/self/root"),
        "cpus": sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [],
        "limits": [resource.getrlimit(number) for number in _limits()],
        "nice": os.nice(0),
    }


def digest(*parts: Any) -> str:
    """Return a short name for all of this together."""
    text = json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=8).hexdigest()


def _credentials() -> list[str]:
    lines = _read("/proc/self/status").splitlines()
    return [line for line in lines if line.partition(":")[0] in _CREDENTIALS]


def _limits() -> list[int]:
    return sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class InterpreterProbe:
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


def probe(interpreter: str, flags: tuple[str, ...], env: Mapping[str, str]) -> InterpreterProbe:
    """Return what the interpreter has; asked once, and again when its packages have changed."""
    read = import_environment(env)
    # not by PATH: a run has its own folder in it, and each would ask anew, for 23 ms
    name = digest(interpreter, flags, _state(interpreter), read)
    path = sockets.socket_path(f"probe-{name}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(path.read_text())
        known = InterpreterProbe(
            tuple(data["folders"]), data["fingerprint"], tuple(data["missing"])
        )
        if fingerprint(known.folders) == known.fingerprint:
            return known
    found = _ask(interpreter, flags, basics(env) | read)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(found)))
    partial.replace(path)
    return found


def _ask(interpreter: str, flags: tuple[str, ...], env: Mapping[str, str]) -> InterpreterProbe:
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
        return InterpreterProbe((), [], NEEDED)
    folders = tuple(said["folders"])
    return InterpreterProbe(folders, fingerprint(folders), tuple(said["missing"]))


def _state(interpreter: str) -> list[Any]:
    """Return what changes when the interpreter or its virtual environment is replaced."""
    seen: list[Any] = []
    home = os.path.dirname(os.path.dirname(interpreter))
    for path in (interpreter, os.path.join(home, "pyvenv.cfg")):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            seen.append([os.path.realpath(path), found.st_mtime_ns, found.st_size, found.st_ino])
    return seen
