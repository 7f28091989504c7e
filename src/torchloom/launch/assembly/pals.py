"""HPE's `mpiexec` (PALS), the launcher of PBS systems such as Aurora and Polaris."""

from torchloom.launch.assembly.program import colon_proof
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.assembly.topology import BadTopology
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import Style, render_hosts


def assemble(world: World, request: Request) -> Assembled:
    """Return one `mpiexec`. `--envall` sends its own environment whole; no value is in a flag."""
    spot = request.topology
    if spot.uniform is None:
        raise BadTopology(
            f"PALS' mpiexec puts the same number of ranks on every host, not {spot.per_host}; "
            "pass --ppn, or use --launcher ssh"
        )
    argv = ["mpiexec", "--envall", "--line-buffer"]
    argv += [f"--np={spot.total}", f"--ppn={spot.uniform}", f"--hostfile={request.hostfile}"]
    argv += [f"--cpu-bind={request.cpu_bind or 'none'}"]
    argv += [f"--wdir={request.cwd}"] if request.cwd else []
    argv += [*request.flags, *colon_proof(request.command)]
    env = dict(request.env)
    if world.elsewhere and world.job_id:
        env |= {"PBS_JOBID": world.job_id, "PBS_NODEFILE": str(request.hostfile)}
    hosts = render_hosts(spot.slots, Style.NAMES)
    return Assembled((Command(tuple(argv), env),), ((request.hostfile, hosts),), spot.notes)
