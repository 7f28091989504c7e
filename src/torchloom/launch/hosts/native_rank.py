"""A rank that a native launcher started: give it torchrun's variables, then become the program.

`python -m torchloom.launch.hosts.native_rank PROGRAM ...`, run by srun, mpirun or mpiexec.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from torchloom import settings
from torchloom.errors import LoomError, UserError
from torchloom.launch.environments import find_world
from torchloom.launch.environments.world import World
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts.host_lists import index_of
from torchloom.launch.variables import ATTEMPT_VARIABLE, RANK_DEFAULTS, RESOLVER_DEFAULTS

MEETING = "LOOM_MEETING"  # host:port where rank 0 of the first attempt listens
HOSTS = "LOOM_HOSTS"  # those of the launch in rank order: MPI does not number them


def main(arguments: list[str]) -> int:
    """Become the program; an error if that cannot be."""
    env = settings.environment()
    try:
        world = find_world(_without_torchrun(env), host_name())
        own = variables(placed(world, env, host_name()), env)
        os.execvpe(arguments[0], arguments, {**env, **own})
    except OSError as error:
        print(f"loom: {arguments[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127 if isinstance(error, FileNotFoundError) else 126
    except LoomError as error:
        print(f"loom: {error}", file=sys.stderr)  # noqa: T201
        return 2


def placed(world: World, env: Mapping[str, str], own_host: str) -> World:
    """Return a rank's world with its host's number among those of the launch. Pure."""
    hosts = tuple(filter(None, env.get(HOSTS, "").split(",")))
    place = index_of(own_host, hosts)
    if place is None:  # a launch by addresses, or none of ours: what the launcher said stays
        return world
    return replace(world, hosts=hosts, slots=(), node_rank=place, node_count=len(hosts))


def variables(world: World, env: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for a rank as its launcher placed it. Pure."""
    if world.rank is None or world.world_size is None:
        raise UserError("no launcher set this process' rank; start it with srun or mpirun")
    address, _, port = env.get(MEETING, "127.0.0.1:29500").rpartition(":")
    attempt = int(env.get(ATTEMPT_VARIABLE, "0"))
    local = world.local_rank or 0
    found = {
        "RANK": world.rank,
        "WORLD_SIZE": world.world_size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": world.local_size or 1,
        "GROUP_RANK": world.node_rank or 0,
        "GROUP_WORLD_SIZE": world.nhosts or 1,
        "ROLE_RANK": world.rank,
        "ROLE_WORLD_SIZE": world.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": address,
        "MASTER_PORT": int(port) + attempt,  # every attempt meets at a place of its own
        "TORCHELASTIC_RESTART_COUNT": attempt,
    }
    defaults = RANK_DEFAULTS | RESOLVER_DEFAULTS
    if world.world_size > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    unset = {name: value for name, value in defaults.items() if name not in env}
    return {name: str(value) for name, value in found.items()} | unset


def _without_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """Leave out what an outer launch may have left: this rank's launcher is the one to ask."""
    outer = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "MASTER_ADDR")
    return {name: value for name, value in env.items() if name not in outer}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
