"""The environment variables that torchLoom reads and sets: the table behind the reference.

`loom doctor` uses it to find misspelt names.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from torchloom.doctor.findings import CheckFinding, HostPlace, note, ok

PREFIX = "LOOM_"
_ALIKE = 0.8  # of two names, from which on one is taken for a misspelling of the other


class VariableGroup(StrEnum):
    """By whom a variable is set, and for what."""

    STATE = "Where state lives"
    PLANE = "The plane"
    JOBS = "Jobs"
    MACHINE = "The machine and its programs"
    CONTRACT = "Set for every rank"
    INTERNAL = "Between torchLoom's own processes"


class Variable(NamedTuple):
    """One variable; a name that ends in `*` stands for all with that beginning."""

    name: str
    meaning: str
    default: str
    reader: str
    group: VariableGroup


def _of(group: VariableGroup, *rows: tuple[str, str, str, str]) -> tuple[Variable, ...]:
    return tuple(Variable(*row, group) for row in rows)


VARIABLES: tuple[Variable, ...] = (
    *_of(
        VariableGroup.STATE,
        (
            "LOOM_HOME",
            "Folder of runs, plane and keys; it may be on a network file system",
            "`~/.torchloom`",
            "all commands and processes",
        ),
        (
            "XDG_RUNTIME_DIR",
            "Local folder for sockets and locks, in its folder `torchloom`",
            "`/tmp/torchloom-UID`",
            "all commands and processes",
        ),
        (
            "LOOM_DATABASE",
            "`postgresql://...`, or a folder for the SQLite files",
            "SQLite in `$LOOM_HOME`, or a local folder where that is on a network file system",
            "weaver, `loom backup`, `loom restore`",
        ),
        (
            "LOOM_CHECKPOINTS",
            "Where all runs save by default: a folder, or `s3://bucket/prefix`",
            "the run's own folder",
            "`loom run`, `loom launch`, weaver",
        ),
        (
            "LOOMCONFIG",
            "The one config file to read; empty: none",
            "`.loomconfig` and `.torchxconfig` of the folder and the home",
            "`loom run`, `loom plan`, `loom config`",
        ),
        ("TORCHXCONFIG", "As `LOOMCONFIG`, which wins", "none", "as `LOOMCONFIG`"),
        ("TORCHX_HOME", "TorchX's state folder, for programs that ask", "`~/.torchx`", "`specs`"),
        (
            "TORCHX_CUSTOM_NAMED_RESOURCES",
            "Module with named resources of your own",
            "none",
            "`specs`",
        ),
        (
            "TORCHX_PLUGINS_SOURCE",
            "Where TorchX's plugins may be: 0 nowhere, 1 `torchx_plugins`, 2 entry points, 3 both",
            "3",
            "`loom run`, `specs`",
        ),
    ),
    *_of(
        VariableGroup.PLANE,
        (
            "LOOM_PLANE",
            "`0`: no plane watches the run and none is started",
            "a plane is used, and started when necessary",
            "`loom run`, `loom launch`, ranks",
        ),
        (
            "LOOM_PLANE_IDLE",
            "Seconds without a job after which a plane that a run started ends",
            "3600",
            "plane",
        ),
        (
            "LOOM_NATS",
            "Address of an external NATS server, `nats://HOST:PORT`",
            "a NATS server of the plane",
            "plane, weaver, node agent",
        ),
        ("torchLoom_ADDR", "As `LOOM_NATS`, which wins", "none", "plane, weaver, node agent"),
        ("LOOM_NATS_CREDS", "Credentials file for that server", "none", "weaver, node agent"),
        ("LOOM_NATS_CA", "CA certificate of that server", "none", "weaver, node agent"),
        (
            "LOOM_ORIGINS",
            "Further addresses at which browsers reach the server, separated by commas",
            "loopback and the address of `loom up --host`",
            "server",
        ),
        (
            "LOOM_DASHBOARD",
            "Folder of a built dashboard; `none`: no dashboard",
            "that of the wheel, else of the checkout",
            "server",
        ),
        (
            "LOOM_MANUAL",
            "Folder of a built manual; `none`: no manual",
            "that of the wheel, else of the checkout",
            "server, `loom docs`",
        ),
        (
            "LOOM_DEVICES",
            "What a node offers, separated by commas: `cpu:N`, the index of a GPU, or a uuid",
            "all CPUs and GPUs",
            "node agent",
        ),
        (
            "LOOM_CHECKPOINT_MARGIN",
            "Seconds before the end of an allocation at which jobs are saved",
            "120",
            "weaver",
        ),
    ),
    *_of(
        VariableGroup.JOBS,
        (
            "LOOM_ATTACH",
            "`0`: programs that do not call `loom.init` are not watched from inside",
            "they are",
            "agents, ranks",
        ),
        (
            "LOOM_ATTACH_SKIP",
            "What is not observed of programs, separated by commas: `loss`, `grad_norm`, `batches`,"
            " `transformers`, `lightning`, `accelerate`, `torchft`",
            "nothing is skipped",
            "ranks",
        ),
        (
            "LOOM_HANG",
            "What happens to a rank without progress: `kill`, `notify` or `off`",
            "`kill` for programs that report steps, else `notify`",
            "ranks",
        ),
        (
            "LOOM_HANG_LIMIT",
            "Seconds without progress until that happens",
            "learned from the run",
            "ranks",
        ),
        (
            "LOOM_NO_FALLBACK",
            "`1`: a backend that fails is not replaced by gloo",
            "it is replaced",
            "ranks (`setup_torch`)",
        ),
        ("LOOM_WARM", "`0`: ranks are not forked from a warm interpreter", "they are", "keeper"),
        (
            "LOOM_WARM_IDLE",
            "Seconds without use after which a warm interpreter ends",
            "3600",
            "keeper",
        ),
        (
            "LOOM_COMM_TIMING",
            "N: the collectives of every Nth step are timed; 0: of none",
            "`distributed.comm_timing` of the job, else none",
            "ranks that call `loom.init`",
        ),
        ("LOOM_DIGESTS", "Folder for digests of every tensor at every step", "none", "ranks"),
        ("LOOM_LEDGER", "Folder for the step digest log", "none", "ranks, `loom chaos`"),
        (
            "LOOM_DEADLINE",
            "End of the allocation in unix seconds; PBS jobs set it",
            "`SLURM_JOB_END_TIME`",
            "`loom run`, `loom launch`",
        ),
        ("TORCH_BACKEND", "Backend of `setup_torch`", "`nccl` on GPUs, else `gloo`", "ranks"),
        ("TORCH_DDP_TIMEOUT", "Seconds that collectives may take", "3600", "ranks (`setup_torch`)"),
        ("LOGLEVEL", "Log level of the ranks of components", "`WARNING`", "components"),
    ),
    *_of(
        VariableGroup.MACHINE,
        ("LOOM_SSH", "The command to reach hosts", "`ssh`", "`loom env push`"),
        (
            "LOOM_MODULES",
            "Environment modules to load before the ranks; empty: none",
            "those of the site",
            "`loom launch`, `loom run`",
        ),
        (
            "LOOM_TORCHRUN",
            "`real`: `torchrun` inside a job is torch's own",
            "it starts torchLoom's launcher",
            "the `torchrun` of jobs",
        ),
        ("NO_COLOR", "Set to anything: no colours", "colours on a terminal", "all commands"),
        (
            "LOOM_NO_DASHBOARD",
            "`1`: a wheel is built without the dashboard",
            "with it",
            "`pip install .`",
        ),
        ("LOOM_NO_DOCS", "`1`: a wheel is built without the manual", "with it", "`pip install .`"),
    ),
    *_of(
        VariableGroup.CONTRACT,
        ("RANK", "Number of the rank in its group", "always set", "torch, your program"),
        ("WORLD_SIZE", "Ranks in the group", "always set", "torch, your program"),
        ("LOCAL_RANK", "Number of the rank on its host", "always set", "torch, your program"),
        ("LOCAL_WORLD_SIZE", "Ranks on that host", "always set", "torch, your program"),
        ("GROUP_RANK", "Number of the host in the group", "always set", "your program"),
        ("GROUP_WORLD_SIZE", "Hosts in the group", "always set", "your program"),
        ("ROLE_RANK", "Number of the rank in its role", "always set", "your program"),
        ("ROLE_WORLD_SIZE", "Ranks in the role", "always set", "your program"),
        ("ROLE_NAME", "Name of the role", "always set", "your program"),
        ("MASTER_ADDR", "Address at which ranks meet", "always set", "torch"),
        ("MASTER_PORT", "Port at which ranks meet", "always set", "torch"),
        ("TORCHELASTIC_RESTART_COUNT", "Restarts so far", "always set", "torch, your program"),
        ("TORCHELASTIC_MAX_RESTARTS", "Restarts at most", "always set", "torch, your program"),
        ("TORCHELASTIC_RUN_ID", "Id of the run", "always set", "torch, your program"),
        (
            "TORCHELASTIC_USE_AGENT_STORE",
            "Whether the launcher hosts the store at which ranks meet",
            "always set",
            "torch",
        ),
        (
            "JAX_COORDINATOR_ADDRESS",
            "Where JAX's ranks meet; a job may set another",
            "always set",
            "JAX",
        ),
        ("TORCHELASTIC_ERROR_FILE", "File for the rank's error", "always set", "torch"),
        ("PET_LOG_DIR", "Folder for files of torch.distributed", "always set", "torch"),
        ("TORCHX_RANK0_HOST", "Host of rank 0", "always set", "TorchX's components"),
        ("LOOM_JOB", "Id of the job", "always set", "your program, `loom env save`"),
        ("LOOM_NODE", "Name of the node", "always set", "your program"),
        ("LOOM_ROLE", "Name of the role", "always set", "your program"),
        ("LOOM_ATTEMPT", "Number of the attempt, from 0", "always set", "your program"),
        ("LOOM_JOB_SPEC", "The submitted job as JSON", "set for a job file", "your program"),
        ("LOOM_PORT_*", "A port that the role requests by name", "set for each", "your program"),
    ),
    *_of(
        VariableGroup.INTERNAL,
        ("LOOM_GENERATION", "Membership in which the rank was started", "", "ranks"),
        ("LOOM_LIFE", "Number of the rank's process, with live recovery", "", "ranks"),
        ("LOOM_STANDIN", "`1`: the rank joins a running group", "", "ranks"),
        ("LOOM_CHECKPOINT_ROOT", "Folder of the run's checkpoints", "", "ranks"),
        ("LOOM_RESUME", "Checkpoint to resume from; `1`: there is none yet", "", "ranks"),
        ("LOOM_UNTIL", "Step at which loops end", "", "ranks"),
        ("LOOM_OWN_END", "Step at which the loop's data ended before", "", "ranks"),
        ("LOOM_PAGE", "File of the rank's progress page", "", "ranks"),
        ("LOOM_AGENT", "Socket of the node agent", "", "ranks"),
        ("LOOM_AGENT_OF", "Id of the job, in its launch process, agents, keepers", "", "agents"),
        ("LOOM_AGENT_ID", "Name of a node agent on the bus", "", "node agent"),
        ("LOOM_STORE", "Where the ranks of an attempt meet", "", "ranks"),
        ("LOOM_STORE_OWNER", "Process that holds the store", "", "children of ranks"),
        ("LOOM_THREADLET_OWNER", "Process that reports for the rank", "", "children of ranks"),
        (
            "LOOM_INNER",
            "Place of the rank whose children may be ranks of its job",
            "",
            "children of ranks",
        ),
        ("LOOM_REPLICA", "Replica of the rank", "ROLE/RANK", "ranks"),
        ("LOOM_LAUNCH_TOKEN", "Secret of a launch and its agents", "", "agents"),
        ("LOOM_MEETING", "Address at which native launchers' ranks meet", "", "agents"),
        ("LOOM_HOSTS", "Hosts of a native launch, in rank order", "", "agents"),
        ("LOOM_INSIDE", "`1`: the command was sent into an engine's job", "", "`loom`"),
        ("LOOM_ENGINE_JOB", "Number of the PBS job", "", "job scripts"),
        ("LOOM_LSF_JOB", "Id of the LSF job", "", "job scripts"),
        ("LOOM_LSF_TASK", "Index of the LSF array task", "", "job scripts"),
        ("LOOM_PYTHON", "Interpreter that has torchLoom", "", "the `torchrun` of jobs"),
        ("LOOM_HELD_*", "Former value of a variable that a warm interpreter changed", "", "keeper"),
        ("LOOM_ROOM", "Space for the variables of a fork", "", "keeper"),
    ),
)


def known(name: str) -> bool:
    """Tell whether torchLoom reads or sets a variable."""
    rows = (row.name for row in VARIABLES)
    return any(name == row or (row.endswith("*") and name.startswith(row[:-1])) for row in rows)


def misspelt(place: HostPlace) -> Iterator[CheckFinding]:
    """Find variables that look like one of ours and are none."""
    import difflib

    ours = [row.name for row in VARIABLES if row.name.startswith(PREFIX)]
    strange = [name for name in sorted(place.env) if name.startswith(PREFIX) and not known(name)]
    alike = [(name, difflib.get_close_matches(name, ours, 1, _ALIKE)) for name in strange]
    found = [(name, near[0]) for name, near in alike if near]
    for name, near in found:
        yield note("variables", f"{name} is set, and torchLoom does not read it", f"write {near}")
    if not found:
        yield ok("variables", "no misspelt LOOM_ variable")
