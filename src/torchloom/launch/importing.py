"""What a Python process has taken in by the time torch is imported: two jobs share a zygote only
if all of it is equal."""

import contextlib
import json
import os
import resource
import sys
from _blake2 import blake2b  # hashlib would load OpenSSL first: 3 ms
from collections.abc import Iterable, Mapping
from typing import Any

_PREFIXES = (
    *("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "PYTORCH_"),
    "TORCH",
    *("ATEN_", "DNNL_", "ONEDNN_", "GOTO_", "BLIS_", "VECLIB_"),  # arithmetic below torch
    *("NPY_", "NUMPY_", "SYMPY_", "MPMATH_", "NETWORKX_", "TRITON_", "LC_"),  # read on import
)
_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCHX_")  # read by whoever runs, not by an import
_NAMES = (
    "HOME",
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
