"""(World, request) -> the words of a launcher; one function a launcher, all pure."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torchloom.errors import NotFound

if TYPE_CHECKING:
    from torchloom.launch.assembly.launchers import Assembled, AssemblyRequest
    from torchloom.launch.environments.world import World

    Assembler = Callable[[World, AssemblyRequest], Assembled]

LAUNCHERS: Mapping[str, str] = {  # and the function that knows its words, imported on use
    "srun": "assemble_srun",
    "blaunch": "assemble_blaunch",
    "pals": "assemble_pals",
    "mpich": "assemble_mpich",
    "mpirun": "assemble_openmpi",
    "torchrun": "assemble_torchrun",
    "pbs_tmrsh": "assemble_tmrsh",
    "ssh": "assemble_ssh",
}


def assemble(launcher: str, world: "World", request: "AssemblyRequest") -> "Assembled":
    """Return what starts a request with a launcher, chosen by name."""
    if launcher not in LAUNCHERS:
        raise NotFound("launcher", launcher, LAUNCHERS, f"known: {', '.join(LAUNCHERS)}")
    from torchloom.launch.assembly import launchers

    words: Assembler = getattr(launchers, LAUNCHERS[launcher])
    return words(world, launchers.with_modules(request))


def mpiexec_kind(version: str) -> str:
    """Return which launcher `mpiexec --version` spoke of."""
    if "PALS" in version:
        return "pals"
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return "mpirun"
    return "mpich"


def choose_launcher(
    world: "World", hosts: int, has: Callable[[str], bool], mpiexec: str = ""
) -> str:
    """Return `--launcher auto`: `agent` where no carrier is needed, else the site's own way.

    `has` says whether a program is on PATH; `mpiexec` is what its `--version` printed.
    """
    if hosts == 1 or world.on_every_host:
        return "agent"
    if world.flavour == "slurm" and has("srun"):
        return "srun"
    if world.flavour == "lsf" and not world.elsewhere and has("blaunch"):
        return "blaunch"
    kind = mpiexec_kind(mpiexec) if has("mpiexec") and mpiexec else ""
    in_pbs = world.flavour == "pbs" and not world.elsewhere  # where alone its tasks can be made
    if in_pbs and kind != "pals" and has("pbs_tmrsh"):
        return "pbs_tmrsh"
    if world.flavour in ("pbs", "lsf", "pals") and kind:
        return kind
    return "ssh"
