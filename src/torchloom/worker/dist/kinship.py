"""Which ranks of this host were started together, when their launcher gives them no number."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torchloom.launch.host.identity import ProcessIdentity

# A launch has one value in these; they are not all set by any launcher.
NUMBERS = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "PALS_APID"),
    *("LSB_JOBID", "JSM_JSRUN_PID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("LOOM_JOB",),
)
# Of these, one alone tells two launches of one user on one host apart.
TELLING = ("SLURM_STEP_ID", "PMIX_NAMESPACE", "PALS_APID", "LOOM_JOB")
LAUNCHERS = (
    *("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "orterun", "orted", "prterun", "prted"),
    *("slurmstepd", "palsd", "jsmd", "jsrun"),
)


def launch_key(env: Mapping[str, str]) -> str:
    """Return a name that all ranks of one launch on this host have, and no others."""
    words = [f"{name}={env[name]}" for name in NUMBERS if name in env]
    if not any(name in env for name in TELLING):
        words.append(str(launcher_of(os.getpid())))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]


def launcher_of(pid: int, proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """Return the nearest launcher above a process, past shells and wrappers; else its parent."""
    parent = _parent(pid, proc) or os.getppid()
    above: int | None = parent
    while above is not None and above > 1:
        if _name(above, proc).startswith(LAUNCHERS):
            return ProcessIdentity.of(above)
        above = _parent(above, proc)
    return ProcessIdentity.of(parent)


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int, proc: Path) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
