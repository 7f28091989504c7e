"""What is to be started and what comes out: words for a launcher, nothing done yet."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from torchloom.launch.assembly.topology import BadTopology, HostTopology, head_address
from torchloom.launch.environments.world import World
from torchloom.launch.hosts.host_lists import Style, render_hosts, same_host
from torchloom.launch.keeper.python_command import colon_proof
from torchloom.launch.shim import FOLDER
from torchloom.launch.variables import MODULES_VARIABLE
from torchloom.settings import LOOPBACK_NAMES
from torchloom.specs.dataclass import dataclass

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# What PBS sets for each task by itself, and what is another one on each host.
_TMRSH_OWN = (
    *("PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT", "NCPUS"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
# Where `module` is defined on hosts whose shells do not have it from the start.
_INITS = (
    '"$MODULESHOME/init/bash"',
    '"$LMOD_PKG/init/bash"',
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/bash",
    "/usr/share/modules/init/bash",
)


@dataclass(frozen=True, slots=True)
class AssemblyRequest:
    """One command, on every place of a topology."""

    command: tuple[str, ...]
    topology: HostTopology
    env: Mapping[str, str] = field(default_factory=dict)  # what every rank must see
    cwd: str = ""
    cpu_bind: str = ""  # the launcher's own language; nothing: no binding
    flags: tuple[str, ...] = ()  # the user's own launcher flags, placed before the command
    hostfile: Path = Path("hostfile")  # where a host file would be written
    own_host: str = ""  # where this is assembled: it needs no ssh to itself
    job_id: str = "loom"
    port: int = 29500  # where rank 0 listens
    per_rank: bool = False  # the command is a rank; else it is one process a host, such as an agent
    as_root: bool = False


@dataclass(frozen=True, slots=True)
class LauncherCommand:
    """One process to start: its words, what it adds to the environment, what it reads.

    Values of variables are never in `argv`, where every user of the host could read them.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None
    host: str = ""  # for launchers that take one process a host


@dataclass(frozen=True, slots=True)
class Assembled:
    """The commands, the files to write before, and what the user should know."""

    commands: tuple[LauncherCommand, ...]
    files: tuple[tuple[Path, str], ...] = ()
    notes: tuple[str, ...] = ()


def assemble_ssh(world: World, request: AssemblyRequest) -> Assembled:
    """Return one command a host that reads its script from stdin.

    The remote words are `sh` alone, so a login shell has nothing to expand and other users see no
    values in the process list. The command inherits that stdin: it ends when the launcher does.
    """
    odd = tuple(sorted(name for name in request.env if not VARIABLE_NAME.fullmatch(name)))
    notes = (f"not sent, no shell can set them: {', '.join(odd)}",) if odd else ()
    commands = []
    for index, host in enumerate(request.topology.hosts):
        places = range(request.topology.per_host[index])
        commands += [_ssh_command(request, host, index, place) for place in places]
    return Assembled(tuple(commands), notes=request.topology.notes + notes)


def script(command: tuple[str, ...], env: Mapping[str, str], cwd: str = "") -> str:
    """Return what a POSIX shell reads to run a command with these variables in that folder."""
    known = {name: value for name, value in env.items() if VARIABLE_NAME.fullmatch(name)}
    lines = [f"cd {shlex.quote(cwd)} || exit 1"] if cwd else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(known.items())]
    return "\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n"


def _ssh_command(request: AssemblyRequest, host: str, index: int, place: int) -> LauncherCommand:
    own = rank_variables(request.topology, index, place) if request.per_rank else {}
    text = script(request.command, own | dict(request.env), request.cwd)
    if host in LOOPBACK_NAMES or (request.own_host and same_host(host, request.own_host)):
        return LauncherCommand(("sh",), stdin=text, host=host)
    return LauncherCommand(
        ("ssh", *SSH_OPTIONS, *request.flags, "--", host, "sh"), stdin=text, host=host
    )


def rank_variables(spot: HostTopology, index: int, place: int) -> dict[str, str]:
    """ssh gives a process nothing about its place, unlike every other launcher."""
    own = {
        "RANK": sum(spot.per_host[:index]) + place,
        "LOCAL_RANK": place,
        "LOCAL_WORLD_SIZE": spot.per_host[index],
        "GROUP_RANK": index,
        "GROUP_WORLD_SIZE": len(spot.hosts),
        "WORLD_SIZE": spot.total,
    }
    return {name: str(value) for name, value in own.items()}


def assemble_tmrsh(world: World, request: AssemblyRequest) -> Assembled:
    """Return one command a host that reads its script from a file beside the host file.

    A task gets the variables of the job's first process and nothing to read: what was set since,
    and the words themselves, are in the file, which is its user's alone.
    """
    odd = tuple(sorted(name for name in request.env if not VARIABLE_NAME.fullmatch(name)))
    notes = (f"not sent, no shell can set them: {', '.join(odd)}",) if odd else ()
    path = request.hostfile.with_name("agent.sh")
    text = script(request.command, _sent(request.env), request.cwd)
    commands = tuple(_tmrsh_command(request, host, str(path)) for host in request.topology.hosts)
    return Assembled(commands, ((path, text),), request.topology.notes + notes)


def _tmrsh_command(request: AssemblyRequest, host: str, path: str) -> LauncherCommand:
    words = ("/bin/sh", path)
    if request.own_host and same_host(host, request.own_host):
        return LauncherCommand(words, host=host)
    return LauncherCommand(("pbs_tmrsh", *request.flags, host, *words), host=host)


def _sent(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name not in _TMRSH_OWN}


def assemble_blaunch(world: World, request: AssemblyRequest) -> Assembled:
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
            commands.append(LauncherCommand(argv, stdin=text, host=host))
    return Assembled(tuple(commands), notes=spot.notes)


def assemble_pals(world: World, request: AssemblyRequest) -> Assembled:
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
    return Assembled((LauncherCommand(tuple(argv), env),), ((request.hostfile, hosts),), spot.notes)


def assemble_openmpi(world: World, request: AssemblyRequest) -> Assembled:
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
    command = LauncherCommand(tuple(argv), dict(request.env))
    return Assembled((command,), ((request.hostfile, hosts),), spot.notes)


def assemble_mpich(world: World, request: AssemblyRequest) -> Assembled:
    """Return one `mpiexec`. `-genvall` sends its own environment over its own connection."""
    spot = request.topology
    argv = ["mpiexec", "-f", str(request.hostfile), "-n", str(spot.total), "-genvall"]
    argv += ["-bind-to", request.cpu_bind or "none"]
    argv += ["-wdir", request.cwd] if request.cwd else []
    argv += [*request.flags, *colon_proof(request.command)]
    hosts = render_hosts(spot.slots, Style.MPICH)
    command = LauncherCommand(tuple(argv), dict(request.env))
    return Assembled((command,), ((request.hostfile, hosts),), spot.notes)


def assemble_srun(world: World, request: AssemblyRequest) -> Assembled:
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
    argv += _srun_place(world, request)
    argv += [*request.flags, *colon_proof(request.command)]
    return Assembled((LauncherCommand(tuple(argv), env),), files, spot.notes)


def _srun_place(world: World, request: AssemblyRequest) -> list[str]:
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


def assemble_torchrun(world: World, request: AssemblyRequest) -> Assembled:
    """Return torchrun's words here, or a carrier that starts the same words on every host."""
    spot = request.topology
    if spot.uniform is None:
        raise BadTopology(
            f"torchrun needs the same number of ranks on every host, not {spot.per_host}"
        )
    words = ("torchrun", *_meeting(world, request), *request.flags, *_program(request.command))
    if len(spot.hosts) == 1 or world.on_every_host:
        command = LauncherCommand(words, dict(request.env))
        return Assembled((command,), notes=spot.notes)
    carried = replace(request, command=words, topology=spot.once(), flags=(), per_rank=False)
    carry = assemble_srun if world.flavour == "slurm" else assemble_ssh
    return carry(world, carried)


def _meeting(world: World, request: AssemblyRequest) -> list[str]:
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
    """torchrun puts its own python in front without an option: ours is already there."""
    return ("--no-python", *command)


def with_modules(request: AssemblyRequest) -> AssemblyRequest:
    """Return a request whose command loads what its variables say on every host; else as it is."""
    modules = request.env.get(MODULES_VARIABLE, "").split()
    if not modules:
        return request
    return replace(request, command=after_modules(request.command, modules))


def after_modules(command: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    """Return a command that first loads modules, or says why it cannot and exits with 2.

    It is no login shell: nothing but the modules changes the environment. A module of which a
    version is loaded stays as it is: it was chosen when it was loaded.
    """
    return ("bash", "-c", _module_script(modules), "bash", *command)


def _module_script(modules: Sequence[str]) -> str:
    """Return one line: launchers hand words on, but not all of them lines."""
    names = shlex.join(modules)
    has = "type module >/dev/null 2>&1"
    no_module = _refusal(
        f"$(uname -n) has no `module` to load {names}; remove them from its entry in "
        f"\\$LOOM_HOME/sites.toml, or set {MODULES_VARIABLE}= to load none"
    )
    no_load = _refusal("$(uname -n): `module load $_loom_each` failed")
    return (
        f"for _loom_each in {' '.join(_INITS)}; do "
        f'{has} && break; [ -r "$_loom_each" ] && . "$_loom_each"; done; '
        f"{has} || {no_module}; "
        f"for _loom_each in {names}; do "
        'case ":$LOADEDMODULES:" in *":$_loom_each:"* | *":$_loom_each/"*) ;; '
        f'*) module load "$_loom_each" >&2 || {no_load} ;; esac; done; '
        f'export {MODULES_VARIABLE}= PATH={shlex.quote(FOLDER)}:"$PATH"; exec "$@"'
    )


def _refusal(text: str) -> str:
    quoted = text.replace("`", "\\`").replace('"', '\\"')
    return f'{{ echo "loom: {quoted}" >&2; exit 2; }}'
