"""LSF's `blaunch`: one a host, inside a job."""

from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.assembly.ssh import rank_variables, script
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import same_host


def assemble(world: World, request: Request) -> Assembled:
    """Return one command a host that reads its script from stdin, as for ssh.

    It hands on its own environment, and each host's devices are LSF's to name there.
    """
    spot = request.topology
    commands = []
    for index, host in enumerate(spot.hosts):
        is_here = bool(request.own_host) and same_host(host, request.own_host)
        argv = ("sh",) if is_here else ("blaunch", "-no-shell", *request.flags, host, "sh")
        for place in range(spot.per_host[index]):
            own = rank_variables(spot, index, place) if request.per_rank else {}
            text = script(request.command, own | dict(request.env), request.cwd)
            commands.append(Command(argv, stdin=text, host=host))
    return Assembled(tuple(commands), notes=spot.notes)
