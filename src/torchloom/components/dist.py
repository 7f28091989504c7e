"""Components for processes that train together, by torchrun or our agent, and their arguments."""

import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from torchloom.components.defaults import IMAGE, log_level
from torchloom.specs.api import AppDef, Role, macros, resource
from torchloom.specs.arguments import ArgumentError
from torchloom.specs.builders import parse_mounts


@dataclass
class StructuredNameArgument:
    """`EXPERIMENT/RUN`; either part may be left out."""

    experiment_name: str
    run_name: str

    def __str__(self) -> str:
        return f"{self.experiment_name or ''}/{self.run_name}"

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> "StructuredNameArgument":
        """Read a name; without a run name the module's or the script's own name is taken."""
        if bool(m) == bool(script):
            given = "both" if m else "neither"
            raise ArgumentError(f"give either a script or a module (-m), not {given}")
        experiment, slash, run = name.partition("/")
        if not slash:
            experiment, run = "", name
        fallback = m.rpartition(".")[2] if m else PurePath(script or "").stem
        return StructuredNameArgument(experiment or default_experiment_name, run or fallback)


@dataclass
class StructuredJArgument:
    """`NODESxPROCESSES`; on a host with GPUs, `NODES` alone means one process per GPU."""

    nnodes: int
    nproc_per_node: int

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"

    @staticmethod
    def parse_from(h: str, j: str) -> "StructuredJArgument":
        """Read a topology for a named host; a count that is not the host's GPUs gets a warning."""
        gpus = resource(h=h).gpu
        nodes, times, processes = j.partition("x")
        if not nodes.strip().isdecimal() or (times and not processes.strip().isdecimal()):
            raise ArgumentError(f"-j {j!r} is not NODESxPROCESSES, for example -j 1x8")
        if not times and gpus <= 0:
            raise ArgumentError(
                f"-j {j} gives no processes per node, and {h!r} has no GPUs to count;"
                f" write for example -j {j}x8"
            )
        per_node = int(processes) if times else gpus
        if per_node != gpus:
            warnings.warn(
                f"-j {j} starts {per_node} processes on each {h}, which has {gpus} GPUs;"
                f" -j {nodes} would start one per GPU",
                stacklevel=2,
            )
        return StructuredJArgument(int(nodes), per_node)


DEBUG_ENV = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}

AUTO = "auto"
_TOPOLOGY = re.compile(r"(?:(?:(\d+):)?(\d+)x)?(\d+)", re.ASCII)


class Topology(NamedTuple):
    """The value of `-j`: how many nodes, how many processes on each."""

    min_nodes: int
    nodes: int
    processes: int
    nodes_text: str


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
) -> AppDef:
    """Train with torchrun: one role, a replica per node, several processes in each.

    The processes meet at port rdzv_port of the first node; on a single node, at a free port.

    Args:
        script_args: the script's or module's own arguments
        script: script to run
        m: Python module to run
        image: container image to run in; it needs bash and torchrun
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; the run is named after the script otherwise
        h: named resource, instead of cpu, gpu and memMB
        cpu: cores of each node
        gpu: GPUs of each node
        memMB: memory of each node in MB
        j: [[MIN_NODES:]NODESx]PROCESSES, as in 2x8 or 1:4x8
        env: variables of the processes (A=1,B=2)
        metadata: labels for the engine (A=1,B=2)
        max_retries: how often the engine may start it again
        rdzv_port: port of the first node at which several nodes meet
        rdzv_backend: how several nodes meet
        rdzv_conf: more of torchrun's rendezvous settings (join_timeout=600,timeout=600)
        mounts: what the nodes see of the host (type=bind,src=/host,dst=/job[,readonly])
        debug: set the variables that make torch and NCCL explain themselves
        tee: output that goes to the console and a file: 0 none, 1 stdout, 2 stderr, 3 both
    """
    _need_one_program(script, m)
    topology = parse_nnodes(j)
    run = StructuredNameArgument.parse_from(name, m=m, script=script)
    # `$$` keeps a dollar through macro substitution: bash is to expand the host's variable.
    several = f"$${{{macros.rank0_env}:=localhost}}:{rdzv_port}"
    command = [
        *("torchrun", "--rdzv_backend", shlex.quote(rdzv_backend)),
        *(["--rdzv_conf", shlex.quote(rdzv_conf)] if rdzv_conf is not None else []),
        *("--rdzv_endpoint", "localhost:0" if topology.nodes == 1 else several),
        *("--rdzv_id", shlex.quote(macros.app_id)),
        *("--nnodes", topology.nodes_text),
        *("--nproc_per_node", str(topology.processes)),
        *("--tee", str(tee), "--role", "''"),
        *(["--node_rank", shlex.quote(macros.replica_id)] if rdzv_backend == "static" else []),
        *map(shlex.quote, [script] if script is not None else ["-m", m or ""]),
        *map(shlex.quote, script_args),
    ]
    role = Role(
        name=get_role_name(script, m),
        image=image,
        min_replicas=topology.min_nodes,
        entrypoint="bash",
        num_replicas=topology.nodes,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        args=["-c", " ".join(command)],
        env=_torchrun_env(env, run, debug),
        port_map={"c10d": rdzv_port},
        max_retries=max_retries,
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name=run.run_name, roles=[role], metadata=dict(metadata or {}))


torchrun = ddp  # TorchX's newer name of it


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
) -> AppDef:
    """Train with torchrun on named hosts: `-j 2` means two of them, one process per GPU.

    Args:
        args: the script's or module's own arguments
        script: script to run
        m: Python module to run
        image: container image to run in; it needs bash and torchrun
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; the run is named after the script otherwise
        h: named resource of each node
        j: NODES or NODESxPROCESSES; without PROCESSES, one per GPU of the host
        env: variables of the processes (A=1,B=2)
        metadata: labels for the engine (A=1,B=2)
        max_retries: how often the engine may start it again
        mounts: what the nodes see of the host (type=bind,src=/host,dst=/job[,readonly])
        debug: set the variables that make torch and NCCL explain themselves
    """
    return ddp(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=str(StructuredJArgument.parse_from(h, j)),
        env=env,
        metadata=metadata,
        max_retries=max_retries,
        mounts=mounts,
        debug=debug,
    )


def loom(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    python: str | None = None,
    debug: bool = False,
) -> AppDef:
    """Run a script, a module or any command with torchloom's own agent.

    Without script and m, the free words are the command.

    Args:
        script_args: the program's own arguments, or the whole command
        script: script to run
        m: Python module to run
        image: container image to run in; none runs it where the engine is
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; the run is named after the program otherwise
        h: named resource, instead of cpu, gpu and memMB
        cpu: cores of each node
        gpu: GPUs of each node
        memMB: memory of each node in MB
        j: [[MIN_NODES:]NODESx]PROCESSES, as in 2x8 or 1:4x8; auto is one a device, else one
        env: variables of the processes (A=1,B=2)
        metadata: labels for the engine (A=1,B=2)
        max_retries: how often the engine may start it again
        mounts: what the nodes see of the host (type=bind,src=/host,dst=/job[,readonly])
        python: interpreter for scripts and modules
        debug: set the variables that make torch and NCCL explain themselves
    """
    command = _loom_command(script, m, script_args, python or "python")
    topology = _positive(parse_nnodes("1" if j == AUTO else j), j)
    processes = AUTO if j == AUTO else str(topology.processes)
    run = StructuredNameArgument.parse_from(name, m=m, script=None if m else script or command[0])
    nodes = ["--nnodes", topology.nodes_text] if topology.nodes > 1 else []
    role = Role(
        name=safe_role_name(get_role_name(None if m else script or command[0], m)),
        image=image,
        min_replicas=topology.min_nodes if ":" in topology.nodes_text else None,
        entrypoint="loom",
        num_replicas=topology.nodes,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        # Macro substitution makes one dollar of two; a program's words arrive as written.
        args=["launch", "-n", processes, *nodes, "--"]
        + [word.replace("$", "$$") for word in command],
        env=({} if name == "/" else _tracking_env(run))
        | (env or {})
        | (DEBUG_ENV if debug else {}),
        max_retries=max_retries,
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name=run.run_name or role.name, roles=[role], metadata=dict(metadata or {}))


def get_role_name(script: str | None, m: str | None) -> str:
    """Return the script's name without its ending, or the last part of the module's."""
    if script:
        return PurePath(script).stem
    if m:
        return m.rpartition(".")[2]
    raise ArgumentError("a role is named after a script or a module; give one of them")


def safe_role_name(name: str) -> str:
    """Return the name with what engines refuse in names replaced by dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:63].strip("-.") or "main"


def parse_nnodes(j: str) -> Topology:
    """Read `[[MIN_NODES:]NODESx]PROCESSES`."""
    match = _TOPOLOGY.fullmatch(j)
    if not match:
        raise ArgumentError(f"-j {j!r} is not [[MIN_NODES:]NODESx]PROCESSES, as in 4, 1x4 or 1:2x4")
    least, nodes, processes = match.groups()
    nodes = nodes or "1"
    text = f"{least}:{nodes}" if least else nodes
    return Topology(int(least or nodes), int(nodes), int(processes), text)


def _positive(topology: Topology, j: str) -> Topology:
    if not 1 <= topology.min_nodes <= topology.nodes or topology.processes < 1:
        raise ArgumentError(
            f"-j {j} asks for no nodes, no processes, or a minimum above the maximum;"
            " write for example 2x4 or 1:2x4"
        )
    return topology


def _loom_command(
    script: str | None, m: str | None, words: tuple[str, ...], python: str
) -> list[str]:
    if script and m:
        raise ArgumentError("give --script or -m, not both")
    if script:
        return [python, script, *words]
    if m:
        return [python, "-m", m, *words]
    if not words or not words[0]:
        raise ArgumentError("dist.loom needs --script, -m, or a command after --")
    return list(words)


def _need_one_program(script: str | None, m: str | None) -> None:
    if (script is None) == (m is None):
        raise ArgumentError("give exactly one of --script and -m")


def _tracking_env(run: StructuredNameArgument) -> dict[str, str]:
    return {
        "TORCHX_TRACKING_EXPERIMENT_NAME": run.experiment_name,
        "TORCHX_TRACKING_RUN_NAME": run.run_name,
    }


def _torchrun_env(
    env: dict[str, str] | None, run: StructuredNameArgument, debug: bool
) -> dict[str, str]:
    level = {"LOGLEVEL": log_level()}
    return level | (env or {}) | _tracking_env(run) | (DEBUG_ENV if debug else {})
