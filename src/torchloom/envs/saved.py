"""A job's variables in a file, for a shell that is not in the job."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torchloom.errors import Failure, NotFound, UserError, shorten
from torchloom.launch.assembly.launchers import VARIABLE_NAME
from torchloom.launch.environments import World
from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE

SECRET = "*KEY* *TOKEN* *SECRET* *PASSWORD* *PASSWD* *CREDENTIAL*"
# These identify a process; a shell that had them would count as a part of the job.
IDENTITY = frozenset((JOB_VARIABLE, AGENT_VARIABLE, "LOOM_NODE", "LOOM_STORE", "LOOM_LAUNCH_TOKEN"))
# These belong to the shell that has them, whatever job it is in.
_SHELL = (
    "PWD OLDPWD SHLVL _ TERM TERM_* COLUMNS LINES SSH_* DISPLAY TTY WINDOWID XDG_* DBUS_* TMUX* STY"
    " PS1 HISTFILE SHELL SHELLOPTS BASHOPTS BASH_FUNC* UID EUID PPID GPG_* LS_COLORS"
)
_PARTS: Mapping[str, str] = {
    "scheduler": "SLURM* SBATCH* SRUN* PBS_* NCPUS LSB_* LSF_* LS_* JSM_* FLUX_* COBALT_*"
    " AWS_BATCH_* SM_* JOB_COMPLETION_INDEX",
    "ranks": "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_* ROLE_* MASTER_* NHOSTS NGPU*"
    " PALS_* PMI_* PMIX* OMPI_* MPI* MV2_* HYDRA_* TORCHELASTIC_* TORCHX_* PET_* HOSTFILE HOSTNAME",
    "paths": "*PATH LD_* DYLD_* PYTHON* VIRTUAL_ENV* CONDA* _CE_* MAMBA* *_HOME *_ROOT *_DIR TMPDIR"
    " SCRATCH*",
    "modules": "MODULE* LMOD* __LMOD* _ModuleTable* LOADEDMODULES _LMFILES_* PE_* CRAY*",
    "libraries": "CUDA* NVIDIA_* NCCL_* ROCR_* ROCM* HIP_* HSA_* ZE_* ONEAPI_* CCL_* FI_* UCX_*"
    " GLOO_* TORCH* PYTORCH* OMP_* MKL_* KMP_* GOMP_* OPENBLAS_* NUMEXPR_* TRITON_* XLA_* HF_* TF_*"
    " JAX_* WANDB_* MLFLOW_* LOOM_* *_PROXY *_proxy RES_OPTIONS",
}
_WITH_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
FORMAT = "loom-env/1"


def render(variables: Mapping[str, str], shell: str) -> str:
    """Return one statement a variable; names that no shell can set are left out."""
    if shell not in SHELLS:
        raise NotFound("shell", shell, SHELLS, f"write one of {', '.join(SHELLS)}")
    line = SHELLS[shell]
    return "".join(line(n, v) for n, v in variables.items() if VARIABLE_NAME.fullmatch(n))


def unsettable(variables: Mapping[str, str]) -> list[str]:
    """Return the names that no shell can set."""
    return [name for name in variables if not VARIABLE_NAME.fullmatch(name)]


def _posix(name: str, value: str) -> str:
    quoted = value.replace("'", "'\\''")
    return f"export {name}='{quoted}'\n"


def _fish(name: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {name} '{quoted}'\n"


SHELLS: Mapping[str, Callable[[str, str], str]] = {
    "bash": _posix,
    "zsh": _posix,
    "sh": _posix,
    "fish": _fish,
}


def choose(env: Mapping[str, str], everything: bool = False) -> tuple[dict[str, str], list[str]]:
    """Return the variables to save, and the names of secrets that were left out.

    A value that holds a password, such as a proxy's address, is a secret under any name.
    """
    kept, secrets = {}, []
    for name, value in sorted(env.items()):
        if name in IDENTITY or (not everything and not _belongs(name)):
            continue
        if not everything and is_secret(name, value):
            secrets.append(name)
        elif not _is_any(name, _SHELL):
            kept[name] = value
    return kept, secrets


def is_secret(name: str, value: str = "") -> bool:
    """Tell by the name, else by a password in an address."""
    return _is_any(name.upper(), SECRET) or bool(_WITH_PASSWORD.search(value))


def part_of(name: str) -> str:
    """Return which part of a job's environment a variable is."""
    return next((part for part, globs in _PARTS.items() if _is_any(name, globs)), "other")


def _belongs(name: str) -> bool:
    return part_of(name) != "other"


def _is_any(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs.split())


class BadEnvFile(UserError):
    """A file that `env save` did not write."""

    code = "bad_env_file"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shorten(str(path))}: {why}; write it with `loom env save` inside the job"
        )


@dataclass(frozen=True, slots=True)
class SavedEnv:
    """Variables, and the job they are of."""

    variables: Mapping[str, str]
    flavour: str
    job_id: str | None
    hosts: tuple[str, ...]
    saved_at: str
    saved_on: str

    @classmethod
    def of(cls, variables: Mapping[str, str], world: World, own_host: str) -> "SavedEnv":
        """Return what is to be saved now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(variables, world.flavour, world.job_id, world.hosts, now, own_host)

    @property
    def name(self) -> str:
        """The default name of its file."""
        job = "".join(char if char.isalnum() or char in "-_" else "-" for char in self.job_id or "")
        return f"{self.flavour}-{job}.json" if job else f"{self.flavour}.json"

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "hosts": list(self.hosts)}

    def write(self, path: Path) -> None:
        """Replace the file in one step; no other user may read it."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w") as file:
                file.write(json.dumps(self.to_dict(), indent=1) + "\n")
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            text = f"cannot write {path}: {error.strerror}; name another FILE"
            raise Failure(text) from error


def folder(home: Path) -> Path:
    """Return the default folder of saved files."""
    return home / "envs"


def newest(home: Path) -> Path:
    """Return the file that was saved last."""
    found = sorted(folder(home).glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        where = f"{folder(home)} is empty; `loom env save` inside the job writes one"
        raise NotFound("saved environment", "newest", (), where)
    return found[-1]


def read(path: Path) -> SavedEnv:
    """Return what was saved; names and values are checked, for a shell will take them."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise BadEnvFile(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise BadEnvFile(path, "not a saved environment") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadEnvFile(path, "not a saved environment")
    try:
        return _parsed(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadEnvFile(path, "it is damaged") from error


def _parsed(data: dict[str, Any]) -> SavedEnv:
    variables = dict(data["variables"])
    for name, value in variables.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise TypeError(name)
    return SavedEnv(
        variables,
        str(data["flavour"]),
        None if data["job_id"] is None else str(data["job_id"]),
        tuple(map(str, data["hosts"])),
        str(data["saved_at"]),
        str(data["saved_on"]),
    )
