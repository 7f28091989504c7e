"""Where a job was started, and its command line: by its run folder, or by its processes."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord

SPEC_VARIABLE = "LOOM_JOB_SPEC"
SHOWN = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG"),
        *("TORCH_DISTRIBUTED_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "CONDA_DEFAULT_ENV"),
        *("LOOM_WARM", "LOOM_ATTACH", "LOOM_ATTACH_SKIP"),
    )
)
HIDDEN = "***"
_SECRET = re.compile(r"(?i)(token|secret|passw(or)?d|api[-_]?key|credential|access[-_]?key)")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Command line, folder and variables of a job; `pids` are processes of it on this host."""

    cwd: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    pids: tuple[int, ...] = ()
    folder: Path | None = None
    submitted: Path | None = None  # the folder of the job, where another engine runs it

    @property
    def sources(self) -> tuple[Path, ...]:
        """Return where the program's source may be: beside its script, or where it was started."""
        scripts = [word for word in self.argv[:4] if word.endswith(".py")]
        beside = [Path(self.cwd, script).parent for script in scripts]
        return tuple(path for path in (*beside, Path(self.cwd)) if self.cwd and path.is_dir())

    @property
    def spec(self) -> dict[str, Any] | None:
        """Return the job's spec, as its workers have it."""
        with contextlib.suppress(ValueError):
            found = json.loads(self.env.get(SPEC_VARIABLE, ""))
            return found if isinstance(found, dict) else None
        return None


def of_folder(folder: RunFolder) -> RunOrigin | None:
    """Return the origin of a run by its folder; none without one."""
    try:
        request = json.loads((folder.path / "request.json").read_bytes())
        role = request["roles"][0]
        replica = role["replicas"][0]
        argv, own, cwd = replica["argv"], dict(replica["env"]), request["cwd"]
        submitted = Path(request["submitted"]) if request.get("submitted") else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    record = _record(folder)
    launcher = [record.launcher] if record and record.launcher else []
    ranks = [rank.process for rank in record.ranks if rank.process] if record else []
    inherited = next((_environ(pid) for pid in _here(launcher)), {})
    env = {**inherited, **own}
    python = own.get("LOOM_PYTHON", "")
    return RunOrigin(cwd, tuple(argv), env, python, _here(ranks), folder.path, submitted)


def of_process(pid: int) -> RunOrigin | None:
    """Return the origin of a process that torchloom did not start, by the kernel."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
        cwd = os.readlink(_PROC / str(pid) / "cwd")
    except OSError:
        return None
    argv = tuple(word.decode(errors="replace") for word in words)
    return RunOrigin(cwd, argv, _environ(pid), argv[0] if argv else "", (pid,))


def variables(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the names of variables, and the values of the few that cannot be secrets."""
    values = {name: env[name] for name in sorted(SHOWN & set(env))}
    return {"names": sorted(env), "values": values}


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command's words without the values of what is called a token or a password."""
    shown: list[str] = []
    hides = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hides and not word.startswith("-"):
            word = HIDDEN
        elif equals and _SECRET.search(name):
            word = f"{name}={HIDDEN}"
        hides = word.startswith("-") and not equals and bool(_SECRET.search(word))
        shown.append(word)
    return shown


def spec_shown(spec: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a spec whose variables are named only, and whose words hold no secrets."""
    if spec is None:
        return None
    shown = {**spec}
    if isinstance(spec.get("env"), Mapping):
        shown["env"] = sorted(spec["env"])
    for name in ("args", "command"):
        if isinstance(spec.get(name), Sequence) and not isinstance(spec[name], str):
            shown[name] = without_secrets([str(word) for word in spec[name]])
    return shown


def _record(folder: RunFolder) -> RunRecord | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return folder.record()
    return None


def _here(processes: Iterable[ProcessIdentity]) -> tuple[int, ...]:
    return tuple(one.pid for one in processes if one.is_here() and one.is_alive())


def _environ(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        data = (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
        pairs = (pair.partition("=") for pair in data.split("\0") if "=" in pair)
        return {name: value for name, _, value in pairs}
    return {}
