"""Hydra's `mpiexec`: MPICH, Intel MPI and their kin."""

from torchloom.launch.assembly.program import colon_proof
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import Style, render_hosts


def assemble(world: World, request: Request) -> Assembled:
    """Return one `mpiexec`. `-genvall` sends its own environment over its own connection."""
    spot = request.topology
    argv = ["mpiexec", "-f", str(request.hostfile), "-n", str(spot.total), "-genvall"]
    argv += ["-bind-to", request.cpu_bind or "none"]
    argv += ["-wdir", request.cwd] if request.cwd else []
    argv += [*request.flags, *colon_proof(request.command)]
    hosts = render_hosts(spot.slots, Style.MPICH)
    command = Command(tuple(argv), dict(request.env))
    return Assembled((command,), ((request.hostfile, hosts),), spot.notes)
