"""What a job in another engine's allocation gets: its app, options and variables, in one file.

The file is private to its user (0600). The engine sees its path and nothing of what is in it.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchloom.errors import Failure
from torchloom.sealed import seal_in_spec
from torchloom.specs.dataclass import dataclass

FILE = "job.json"
STOP = "stop.json"  # that the job inside is to end, for when no signal of the engine reaches it
END = "end.json"  # how the job inside ended, for when the engine has forgotten it
VARIABLES = "env.sh"  # the submitter's variables, for the shell that begins the job
# What belongs to a shell, a session, a host or another job, and would mislead in an allocation.
_OWN = re.compile(
    r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|PBS|LSB|PMI|PMIX|PRTE|OMPI|HYDRA|PALS|SSH|DBUS|TMUX"
    r"|XDG_SESSION|TORCHELASTIC)_|(LSFUSER|LS_JOBPID|LS_SUBCWD)$"
    r"|LOOM_(JOB|NODE|ROLE|ATTEMPT|GENERATION|LIFE|PAGE|AGENT|AGENT_OF|STORE|LAUNCH_TOKEN|RESUME"
    r"|UNTIL|OWN_END|CHECKPOINT_ROOT|STANDIN|JOB_SPEC|ENGINE_JOB)$"
    r"|(HOSTNAME|DISPLAY|XAUTHORITY|TERM|SHLVL|_|OLDPWD|PWD|MAIL|WINDOWID|RANK|LOCAL_RANK"
    r"|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES"
    r"|SHELLOPTS|BASHOPTS|BASH_VERSINFO|UID|EUID|PPID|IFS)$"
)
_SETTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One app on its way into an allocation."""

    run_id: str
    session: str
    engine: str
    app: Mapping[str, Any]  # as it was submitted, macros unfilled
    cfg: Mapping[str, Any]  # the options that count inside
    env: Mapping[str, str]  # the submitter's variables; they lie in a file of their own
    cwd: str
    job_variable: str  # where the engine puts the job's number
    task_variable: str = ""  # and, in an array, which of its tasks it is
    requeue: tuple[str, ...] = ()  # the words before that number which have it start again

    def write(self, folder: Path) -> None:
        """Put it into its job's folder, readable for its user alone."""
        app = seal_in_spec(self.app)
        write_private(folder / VARIABLES, variables_script(self.env))
        write_private(folder / FILE, json.dumps({**asdict(self), "app": app, "env": {}}, indent=1))

    @classmethod
    def read(cls, folder: Path) -> "Parcel":
        try:
            data = json.loads((folder / FILE).read_bytes())
            return cls(**{**data, "requeue": tuple(data["requeue"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Failure(
                f"{folder / FILE} cannot be read here: {error}; the folder of a job must be on "
                "a file system that its hosts share (-cfg job_dir=..)"
            ) from error


def change(folder: Path, cfg: Mapping[str, Any]) -> None:
    """Have options of a job in its folder be others from its next submission on."""
    changed = asdict(Parcel.read(folder))
    changed["cfg"] = {**changed["cfg"], **cfg}
    write_private(folder / FILE, json.dumps(changed, indent=1))


def travelling(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a submitter that mean the same on a job's hosts."""
    return {
        name: text
        for name, text in env.items()
        if _SETTABLE.fullmatch(name) and not _OWN.match(name) and not _is_of_login(name, text)
    }


def _is_of_login(name: str, text: str) -> bool:
    """Tell whether it names the folder that a login has on its host, and only while it lasts."""
    return name == "XDG_RUNTIME_DIR" and text.startswith("/run/user/")


def variables_script(env: Mapping[str, str]) -> str:
    """Return lines by which a POSIX shell has these variables, whatever is in them."""
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in env.items())


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file whole, or not at all; no other user can read it at any moment."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    partial.replace(path)
