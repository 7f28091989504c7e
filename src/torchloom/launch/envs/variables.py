"""Which variables make a job's environment, and which must not leave their process."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE

SECRET = "*KEY* *TOKEN* *SECRET* *PASSWORD* *PASSWD* *CREDENTIAL*"
# These say which process one is; a shell that had them would be taken for a part of the job.
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
