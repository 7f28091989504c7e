"""Ranks that another launcher or a notebook started: register them with this user's plane.

The plane is found or started. All ranks of one launch agree on one job id.
"""

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from torchloom import settings
from torchloom.launch.environments import World, find_world
from torchloom.launch.host import shared_memory
from torchloom.launch.host.identity import host_name
from torchloom.launch.host.sockets import UPLINK, socket_path
from torchloom.unix import is_private, make_private
from torchloom.worker.environment import (
    AGENT_VARIABLE,
    GENERATION_VARIABLE,
    JOB_VARIABLE,
    PAGE_VARIABLE,
    STORE_VARIABLE,
)
from torchloom.worker.threadlet.owner import started

NO_ID = "none"  # torchrun's default

Env = Mapping[str, str]


def launch_variables(env: Env) -> dict[str, str]:
    """Return the variables that our launcher would have set; empty if it did start this rank.

    It never raises: on an error, the program runs without a plane and one line says so.
    """
    if env.get(AGENT_VARIABLE) or env.get(JOB_VARIABLE) or not settings.wants_plane():
        return {}
    try:
        return _find_variables(env)
    except Exception as error:  # training continues without a plane
        sys.stderr.write(f"loom: this run is not monitored: {type(error).__name__}: {error}\n")
        return {}


def _find_variables(env: Env) -> dict[str, str]:
    from torchloom.client import plane

    world = find_world(env, host_name())
    job = job_id(env, world)
    rank = world.rank or 0
    size = (world.world_size or 1) if world.is_rank else 1
    plane.find_or_start(wait=False)
    folder = _folder(job)
    found = {
        JOB_VARIABLE: job,
        AGENT_VARIABLE: str(plane.folder() / UPLINK),
        PAGE_VARIABLE: _page(folder, rank),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(world.local_rank or 0),
    }
    if generation := env.get("TORCHELASTIC_RESTART_COUNT") or env.get("SLURM_RESTART_COUNT"):
        found[GENERATION_VARIABLE] = generation
    if size > 1 and world.nhosts == 1:
        found[STORE_VARIABLE] = f"file://{folder}/store-{generation or 0}"
    return found


def job_id(env: Env, world: World) -> str:
    """Return the job id, which is the same for all ranks of one launch."""
    digest = hashlib.blake2b(f"{settings.user_name()}\0{_launch(env, world)}".encode())
    return f"{script_name()}-{digest.hexdigest()[:12]}"


def script_name() -> str:
    """Return the name of the script, as a valid job name."""
    if "ipykernel" in sys.modules:
        return "notebook"
    words = getattr(sys, "argv", None) or [""]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(words[0]).stem).strip("-.")
    return name[:40] if name and name != "c" else "python"


def _launch(env: Env, world: World) -> str:
    """Return an identifier of the launch, the same for all of its ranks."""
    if not world.is_rank:
        return f"alone {host_name()} {os.getpid()} {started()}"
    if (run := env.get("TORCHELASTIC_RUN_ID", NO_ID)) != NO_ID:
        return f"torchrun {run}"
    if world.flavour == "slurm":
        return f"slurm {world.job_id} {env.get('SLURM_STEP_ID') or env.get('SLURM_STEPID')}"
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID"):
        if env.get(name):
            return f"{name} {env[name]}"
    if env.get("MASTER_ADDR"):
        return f"meet {env['MASTER_ADDR']}:{env.get('MASTER_PORT', '')}"
    return f"parent {host_name()} {os.getppid()}"


def _folder(job: str) -> Path:
    """Return the job's folder in shared memory; the last rank to exit removes it.

    If another user owns a folder of that name, a folder beside our sockets is used.
    """
    folder = shared_memory.base() / f"loom_{job}-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if is_private(folder):
        return folder
    own = socket_path(folder.name)
    make_private(own)
    return own


def _page(folder: Path, rank: int) -> str:
    page = folder / f"page-{rank}"
    page.write_bytes(bytes(shared_memory.PAGE_SIZE))
    page.chmod(0o600)
    atexit.register(_leave, page, os.getpid())
    return str(page)


def _leave(page: Path, pid: int) -> None:
    if pid != os.getpid():
        return  # a fork of the rank
    with contextlib.suppress(OSError):
        page.unlink()
        if not any(page.parent.glob("page-*")):
            shutil.rmtree(page.parent, ignore_errors=True)
