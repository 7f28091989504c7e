"""(World, request) -> the words of a launcher; one small module a launcher, all pure."""

from collections.abc import Callable, Mapping

from torchloom.errors import NotFound
from torchloom.launch.assembly import mpich, openmpi, pals, srun, ssh, torchrun
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.environments.world import World

__all__ = ["Assembled", "Command", "LAUNCHERS", "Request", "assemble", "choose_launcher"]

Assemble = Callable[[World, Request], Assembled]

LAUNCHERS: Mapping[str, Assemble] = {
    "srun": srun.assemble,
    "pals": pals.assemble,
    "mpich": mpich.assemble,
    "mpirun": openmpi.assemble,
    "torchrun": torchrun.assemble,
    "ssh": ssh.assemble,
}


def assemble(launcher: str, world: World, request: Request) -> Assembled:
    """Return what starts a request with a launcher, chosen by name."""
    if launcher not in LAUNCHERS:
        raise NotFound("launcher", launcher, LAUNCHERS, f"known: {', '.join(LAUNCHERS)}")
    return LAUNCHERS[launcher](world, request)


def mpiexec_kind(version: str) -> str:
    """Return which launcher `mpiexec --version` spoke of."""
    if "PALS" in version:
        return "pals"
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return "mpirun"
    return "mpich"


def choose_launcher(world: World, hosts: int, has: Callable[[str], bool], mpiexec: str = "") -> str:
    """Return `--launcher auto`: `agent` where no carrier is needed, else the site's own way.

    `has` says whether a program is on PATH; `mpiexec` is what its `--version` printed.
    """
    if hosts == 1 or world.on_every_host:
        return "agent"
    if world.flavour == "slurm" and has("srun"):
        return "srun"
    if world.flavour in ("pbs", "lsf", "pals") and has("mpiexec") and mpiexec:
        return mpiexec_kind(mpiexec)
    return "ssh"
