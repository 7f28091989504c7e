"""The table of what can be said to a launch: `loom launch`, the torchrun shim, help and docs."""

from typing import NamedTuple

from torchloom.launch.policy import policy
from torchloom.launch.values import (
    Convert,
    count,
    nodes,
    one_of,
    pairs,
    ranks,
    seconds,
    spares,
    streams,
    text,
    whole,
)

LAUNCHERS = (
    *("auto", "agent"),
    *("mpiexec", "mpirun", "srun", "blaunch", "torchrun", "pbs_tmrsh", "ssh"),
)


class Option(NamedTuple):
    """One thing that can be said; underscores in long names are as good as dashes."""

    field: str  # of LaunchCommand; none: torchrun's, accepted and without effect here
    names: tuple[str, ...]  # as help shows them; none: only a variable says it
    help: str = ""
    metavar: str = ""  # a flag that has one is followed by the command it speaks of
    convert: Convert | None = None  # none: a flag without a value
    also: tuple[str, ...] = ()  # other tools' words for it
    torchrun: str = ""  # torchrun's words for it, short one first
    variable: str = ""  # counts when no flag says it
    hidden: bool = False

    @property
    def is_flag(self) -> bool:
        """Tell whether no value follows."""
        return self.convert is None


def _torchrun(
    field: str, name: str, convert: Convert | None = None, short: str = "", petted: bool = True
) -> Option:
    """Return an option that only torchrun's users know: accepted, not shown."""
    variable = f"PET_{name[2:].replace('-', '_').upper()}" if petted else ""
    names = (*short.split(), name)
    metavar = "" if convert is None else "VALUE"
    words = " ".join(names)
    return Option(field, names, "", metavar, convert, (), words, variable, hidden=True)


OPTIONS: tuple[Option, ...] = (
    Option(
        "total",
        ("-n", "--np"),
        "Ranks in all: a number, gpu, cpu or auto.",
        "N",
        count,
        also=("-np", "--n", "--nproc", "--nprocs", "--world-size"),
    ),
    Option(
        "per_node",
        ("--nproc-per-node", "--ppn"),
        "Ranks on each host, in the same words.",
        "N",
        count,
        also=("-ppn",),
        torchrun="--nproc-per-node",
        variable="PET_NPROC_PER_NODE",
    ),
    Option(
        "nodes",
        ("--nnodes", "--nh"),
        "Hosts: N, or MIN:MAX.",
        "HOSTS",
        nodes,
        also=("-nh", "--nhost", "--nhosts", "--nnode"),
        torchrun="--nnodes",
        variable="PET_NNODES",
    ),
    Option("hostfile", ("--hostfile",), "The hosts, instead of the allocation's.", "FILE", text),
    Option(
        "launcher",
        ("--launcher",),
        "auto, agent, mpiexec, mpirun, srun, blaunch, torchrun, pbs_tmrsh or ssh.",
        "NAME",
        one_of(*LAUNCHERS),
    ),
    Option("per_rank", ("--per-rank",), "The launcher starts each rank, not one agent a host."),
    Option(
        "max_restarts",
        ("--max-restarts", "--retries"),
        "Starts of all ranks after one failed, at most.",
        "K",
        whole(),
        also=("--max-failover-retries",),
        torchrun="--max-restarts",
        variable="PET_MAX_RESTARTS",
    ),
    Option(
        "spares",
        ("--spares",),
        "Hosts to hold back for bad ones; default: all left over.",
        "N",
        spares,
        also=("--spare-nodes",),
    ),
    Option(
        "idle_timeout",
        ("--timeout",),
        "End the ranks, with code 124, after so long without output.",
        "SEC",
        seconds,
    ),
    Option(
        "orphan_limit", ("--orphan-limit",), "Ranks without an agent live so long.", "SEC", seconds
    ),
    Option(
        "grace",
        ("--shutdown-timeout",),
        "Seconds between SIGTERM and SIGKILL; default 10.",
        "SEC",
        whole(),
        also=("--grace",),
        torchrun="--shutdown-timeout",
        variable="PET_SHUTDOWN_TIMEOUT",
    ),
    Option(
        "policy",
        ("--policy",),
        "After a failure: live, restart, shrink or fail; nan=notify|restart|fail.",
        "WORDS",
        policy,
    ),
    Option(
        "cpu_bind",
        ("--cpu-bind",),
        "Binding of ranks to cores, in the launcher's words.",
        "HOW",
        text,
        variable="CPU_BIND",
    ),
    Option(
        "log_dir",
        ("--log-dir",),
        "Keep logs here.",
        "DIR",
        text,
        torchrun="--log-dir",
        variable="PET_LOG_DIR",
    ),
    Option(
        "role",
        ("--role",),
        "Name of the role.",
        "NAME",
        text,
        torchrun="--role",
        variable="PET_ROLE",
    ),
    Option("no_fallback", ("--no-fallback",), "Fail rather than fall back to gloo."),
    Option(
        "no_python",
        ("--no-python",),
        "The command is no Python script.",
        torchrun="--no-python",
        variable="PET_NO_PYTHON",
    ),
    Option("dryrun", ("--dryrun", "--dry-run"), "Show what would be started."),
    Option(
        "module",
        ("-m", "--module"),
        "Run a module, as `python -m` does.",
        "MODULE",
        torchrun="-m --module",
        variable="PET_MODULE",
    ),
    _torchrun("node_rank", "--node-rank", whole()),
    _torchrun("standalone", "--standalone"),
    _torchrun("rdzv_backend", "--rdzv-backend", text),
    _torchrun("rdzv_endpoint", "--rdzv-endpoint", text),
    _torchrun("rdzv_id", "--rdzv-id", text),
    _torchrun("rdzv_conf", "--rdzv-conf", pairs),
    _torchrun("master_addr", "--master-addr", text),
    _torchrun("master_port", "--master-port", whole(0, 65535)),
    _torchrun("local_addr", "--local-addr", text),
    _torchrun("redirects", "--redirects", streams, "-r"),
    _torchrun("tee", "--tee", streams, "-t"),
    _torchrun("local_ranks_filter", "--local-ranks-filter", ranks),
    _torchrun("virtual_local_rank", "--virtual-local-rank"),
    _torchrun(
        "numa_binding",
        "--numa-binding",
        one_of("node", "socket", "exclusive", "core-complex"),
        petted=False,
    ),
    _torchrun("", "--run-path"),
    _torchrun("", "--monitor-interval", seconds),
    _torchrun("", "--start-method", one_of("spawn", "fork", "forkserver")),
    _torchrun("", "--event-log-handler", text),
    _torchrun("", "--signals-to-handle", text),
    _torchrun("", "--duplicate-stdout-filters", text),
    _torchrun("", "--duplicate-stderr-filters", text),
    _torchrun("", "--logs-specs", text, petted=False),
    Option("", ("--auto-retry",), hidden=True),
    Option("python", (), "", "", text, variable="PYTHON_EXEC", hidden=True),
    Option(
        "prefix_template",
        *((), "", "", text),
        variable="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        hidden=True,
    ),
    Option("help", ("-h", "--help"), torchrun="-h --help", hidden=True),
)
