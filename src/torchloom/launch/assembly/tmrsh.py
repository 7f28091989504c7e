"""`pbs_tmrsh` of PBS: one a host; what it starts is a task of the job and ends with it."""

from collections.abc import Mapping

from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.assembly.ssh import NAME, script
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import same_host

# What PBS tells each task by itself, and what is another one on each host.
_OWN = (
    *("PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT", "NCPUS"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)


def assemble(world: World, request: Request) -> Assembled:
    """Return one command a host that reads its script from a file beside the host file.

    A task gets the variables of the job's first process and nothing to read: what was set since,
    and the words themselves, are in the file, which is its user's alone.
    """
    odd = tuple(sorted(name for name in request.env if not NAME.fullmatch(name)))
    notes = (f"not sent, no shell can set them: {', '.join(odd)}",) if odd else ()
    path = request.hostfile.with_name("agent.sh")
    text = script(request.command, _sent(request.env), request.cwd)
    commands = tuple(_command(request, host, str(path)) for host in request.topology.hosts)
    return Assembled(commands, ((path, text),), request.topology.notes + notes)


def _command(request: Request, host: str, path: str) -> Command:
    words = ("/bin/sh", path)
    if request.own_host and same_host(host, request.own_host):
        return Command(words, host=host)
    return Command(("pbs_tmrsh", *request.flags, host, *words), host=host)


def _sent(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name not in _OWN}
