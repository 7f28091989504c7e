"""Open MPI's `mpirun`."""

from torchloom.launch.assembly.program import colon_proof
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import Style, render_hosts


def assemble(world: World, request: Request) -> Assembled:
    """Return one `mpirun`. `-x NAME` sends a value from its own environment: any text survives."""
    spot = request.topology
    argv = ["mpirun", "--hostfile", str(request.hostfile), "-np", str(spot.total)]
    argv += ["--map-by", "slot", "--bind-to", request.cpu_bind or "none"]
    if request.as_root:
        argv.append("--allow-run-as-root")
    if spot.notes:
        argv.append("--oversubscribe")
    argv += ["--wdir", request.cwd] if request.cwd else []
    for name in sorted(request.env):
        argv += ["-x", name]
    argv += [*request.flags, *colon_proof(request.command)]
    hosts = render_hosts(spot.slots, Style.OPEN_MPI)
    command = Command(tuple(argv), dict(request.env))
    return Assembled((command,), ((request.hostfile, hosts),), spot.notes)
