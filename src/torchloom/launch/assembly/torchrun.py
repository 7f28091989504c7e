"""torchrun itself, one a host, carried there by srun or ssh."""

from dataclasses import replace

from torchloom.launch.assembly import srun, ssh
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.assembly.topology import BadTopology, head_address
from torchloom.launch.environments.world import World


def assemble(world: World, request: Request) -> Assembled:
    """Return torchrun's words here, or a carrier that starts the same words on every host."""
    spot = request.topology
    if spot.uniform is None:
        raise BadTopology(f"torchrun wants the same number of ranks a host, not {spot.per_host}")
    words = ("torchrun", *_meeting(world, request), *request.flags, *_program(request.command))
    if len(spot.hosts) == 1 or world.on_every_host:
        command = Command(words, dict(request.env))
        return Assembled((command,), notes=spot.notes)
    carried = replace(request, command=words, topology=spot.once(), flags=(), per_rank=False)
    carry = srun.assemble if world.flavour == "slurm" else ssh.assemble
    return carry(world, carried)


def _meeting(world: World, request: Request) -> list[str]:
    spot = request.topology
    counts = [f"--nnodes={len(spot.hosts)}", f"--nproc-per-node={spot.uniform}"]
    if len(spot.hosts) == 1 and not world.on_every_host:
        return [*counts, "--standalone"]
    address = head_address(world, spot)
    return [
        *counts,
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={address}:{request.port}",
        f"--rdzv-id={request.job_id}",
    ]


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """torchrun puts its own python in front unless told not to: ours is already there."""
    return ("--no-python", *command)
