"""Slurm's `srun`, inside an allocation or pointed at one."""

from pathlib import Path

from torchloom.launch.assembly.program import colon_proof
from torchloom.launch.assembly.request import Assembled, Command, Request
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import Style, render_hosts


def assemble(world: World, request: Request) -> Assembled:
    """Return one `srun`. Variables ride in its own environment: `--export` splits at commas."""
    spot = request.topology
    argv = ["srun", f"--nodes={len(spot.hosts)}", f"--ntasks={spot.total}"]
    env = dict(request.env)
    files: tuple[tuple[Path, str], ...] = ()
    if world.groups > 1 and spot.uniform == 1 and spot.hosts == world.hosts:
        parts = ",".join(map(str, range(world.groups)))  # each counts its own nodes
        argv = ["srun", f"--het-group={parts}", "--ntasks-per-node=1"]
    elif spot.uniform and _in_slurms_order(world, spot.hosts):
        argv += [f"--ntasks-per-node={spot.uniform}", "--distribution=block"]
        argv += [f"--nodelist={','.join(spot.hosts)}"]
    else:  # only a host file makes srun keep our order and uneven counts
        argv += ["--distribution=arbitrary"]
        env["SLURM_HOSTFILE"] = str(request.hostfile)
        files = ((request.hostfile, render_hosts(spot.slots, Style.REPEATED)),)
    argv += [f"--cpu-bind={request.cpu_bind or 'none'}", "--export=ALL"]
    argv += [] if request.per_rank else ["--unbuffered"]  # it tears the lines of several ranks
    argv += ["--kill-on-bad-exit=0", "--wait=0"]  # one rank's end is not for srun to judge
    argv += _place(world, request)
    argv += [*request.flags, *colon_proof(request.command)]
    return Assembled((Command(tuple(argv), env),), files, spot.notes)


def _place(world: World, request: Request) -> list[str]:
    words = []
    if world.elsewhere and world.job_id:
        words.append(f"--jobid={world.job_id}")
    if world.inside_step or world.elsewhere:
        words.append("--overlap")  # the shell's own step holds the CPUs
    slots = dict(zip(world.hosts, world.slots, strict=False))
    wanted = zip(request.topology.hosts, request.topology.per_host, strict=True)
    if any(count > slots.get(host, count) for host, count in wanted):
        words.append("--overcommit")
    if request.cwd:
        words.append(f"--chdir={request.cwd}")
    return words


def _in_slurms_order(world: World, hosts: tuple[str, ...]) -> bool:
    """srun sorts the names it is given: ranks follow its order, not ours."""
    return hosts == tuple(host for host in world.hosts if host in hosts)
