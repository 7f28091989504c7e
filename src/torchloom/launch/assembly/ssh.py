"""One `ssh` a host, for hosts that no scheduler hands out."""

import re
import shlex
from collections.abc import Mapping

from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.assembly.topology import Topology
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import same_host
from torchloom.settings import LOOPBACK_NAMES

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")


def assemble(world: World, request: Request) -> Assembled:
    """Return one command a host that reads its script from stdin.

    The remote words are `sh` alone, so a login shell has nothing to expand and nobody sees values
    in the process list. The command inherits that stdin: it ends when the launcher does.
    """
    odd = tuple(sorted(name for name in request.env if not NAME.fullmatch(name)))
    notes = (f"not sent, no shell can set them: {', '.join(odd)}",) if odd else ()
    commands = []
    for index, host in enumerate(request.topology.hosts):
        places = range(request.topology.per_host[index])
        commands += [_command(request, host, index, place) for place in places]
    return Assembled(tuple(commands), notes=request.topology.notes + notes)


def script(command: tuple[str, ...], env: Mapping[str, str], cwd: str = "") -> str:
    """Return what a POSIX shell reads to run a command with these variables in that folder."""
    known = {name: value for name, value in env.items() if NAME.fullmatch(name)}
    lines = [f"cd {shlex.quote(cwd)} || exit 1"] if cwd else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(known.items())]
    return "\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n"


def _command(request: Request, host: str, index: int, place: int) -> Command:
    own = rank_variables(request.topology, index, place) if request.per_rank else {}
    text = script(request.command, own | dict(request.env), request.cwd)
    if host in LOOPBACK_NAMES or (request.own_host and same_host(host, request.own_host)):
        return Command(("sh",), stdin=text, host=host)
    return Command(("ssh", *OPTIONS, *request.flags, "--", host, "sh"), stdin=text, host=host)


def rank_variables(spot: Topology, index: int, place: int) -> dict[str, str]:
    """ssh tells a process nothing about its place, unlike every other launcher."""
    own = {
        "RANK": sum(spot.per_host[:index]) + place,
        "LOCAL_RANK": place,
        "LOCAL_WORLD_SIZE": spot.per_host[index],
        "GROUP_RANK": index,
        "GROUP_WORLD_SIZE": len(spot.hosts),
        "WORLD_SIZE": spot.total,
    }
    return {name: str(value) for name, value in own.items()}
