"""The command line of a launch, as a value: what `loom launch`, its shim and roles say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchloom.errors import UserError
from torchloom.launch.grammar.parser import OURS, TORCHRUN, ParsedWords
from torchloom.launch.grammar.values import NO_STREAMS, Count, NodeCount, Streams
from torchloom.specs.dataclass import dataclass

AS_TORCHRUN = "--as-torchrun"  # the first word: all others are read as torchrun reads them
AGENT = "agent"
NOTHING = "nothing to launch: write `loom launch -n 4 train.py`"

# torchrun's defaults; our own defaults depend on the world.
_TORCHRUN_DEFAULTS: Mapping[str, Any] = {
    "per_node": 1,
    "nodes": NodeCount(1, 1),
    "node_rank": 0,
    "role": "default",
    "rdzv_backend": "static",
    "rdzv_id": "none",
    "master_addr": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where and how torchrun's hosts would meet."""

    backend: str | None = None
    endpoint: str = ""
    id: str | None = None
    conf: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Everything that can be said to a launch; nothing where nothing was said."""

    words: tuple[str, ...]  # the program and its arguments; of a module, its arguments alone
    module: str | None = None
    no_python: bool = False
    python: str | None = None  # interpreter for scripts and modules
    total: Count | None = None
    per_node: Count | None = None
    nodes: NodeCount | None = None
    node_rank: int | None = None
    hostfile: str | None = None
    launcher: str = "auto"
    launcher_flags: tuple[str, ...] = ()
    per_rank: bool = False
    cpu_bind: str | None = None
    numa_binding: str | None = None
    max_restarts: int = 0
    spares: int | None = None  # hosts to hold back; none: all that are left over
    idle_timeout: float | None = None
    orphan_limit: float | None = None
    grace: int | None = None
    policy: str | None = None
    role: str | None = None
    log_dir: str | None = None
    redirects: Streams = NO_STREAMS
    tee: Streams = NO_STREAMS
    local_ranks_filter: tuple[int, ...] = ()
    prefix_template: str | None = None
    rdzv: Rendezvous = Rendezvous()
    standalone: bool = False
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    virtual_local_rank: bool = False
    no_fallback: bool = False
    dryrun: bool = False
    as_torchrun: bool = False
    needless: tuple[str, ...] = ()  # options that were said and change nothing here

    @classmethod
    def parse(cls, argv: Sequence[str], env: Mapping[str, str]) -> "LaunchCommand":
        """Read the words behind `loom launch`, or behind `torchrun` when AS_TORCHRUN is first."""
        as_torchrun = list(argv[:1]) == [AS_TORCHRUN]
        grammar = TORCHRUN if as_torchrun else OURS
        said = grammar.read(argv[1:] if as_torchrun else argv)
        grammar.read_variables(_effective(env, said), said)
        return _checked(_command(said, as_torchrun))

    @classmethod
    def of_role(cls, argv: Sequence[str]) -> "LaunchCommand | None":
        """Read a role's command when it is `loom launch ..`; nothing when it is another.

        A role's command is complete: a script in it is executed as the file it is. What our own
        variables say does not count, since the role may start elsewhere.
        """
        if list(argv[:2]) != ["loom", "launch"]:
            return None
        command = cls.parse(argv[2:], {})
        if "cpu" in (command.total, command.per_node):
            raise UserError("loom launch: a role has a number of ranks, or auto; not cpu")
        return command if command.module else replace(command, no_python=True)

    @property
    def ranks(self) -> int | None:
        """How many ranks a role's replica has, when a number was said."""
        return next((n for n in (self.per_node, self.total) if isinstance(n, int)), None)

    def argv(self, python: str) -> tuple[str, ...]:
        """Return what a rank executes, with an interpreter where one is needed."""
        from torchloom.launch.keeper.python_command import program

        words = ("-m", self.module, *self.words) if self.module else self.words
        if self.as_torchrun and not self.module and not self.no_python:
            return (self.python or python, "-u", *words)  # whatever the script is called
        return program(words, self.python or python, self.no_python)

    def check_launcher(self, launcher: str) -> None:
        """Refuse flags for a native launcher when there is none, after `auto` was resolved too."""
        if self.launcher_flags and launcher == AGENT:
            known = "mpiexec, mpirun, srun or torchrun"
            raise UserError(
                f"{self.launcher_flags[0]} is not an option of loom launch, and no other launcher"
                f" is used here; leave it out or name {known} with --launcher"
            )
        if self.per_rank and launcher == AGENT:
            raise UserError(
                "--per-rank: the agent starts a host's ranks together; name mpiexec, mpirun,"
                " srun or ssh with --launcher, or leave --per-rank out"
            )


def _effective(env: Mapping[str, str], said: ParsedWords) -> Mapping[str, str]:
    """Return the variables that count: ranks in all, on the line, mute ranks a host, in a variable.

    Both together would contradict each other, and the line wins.
    """
    muted = ("PET_NPROC_PER_NODE",) if "total" in said.values else ()
    return {name: value for name, value in env.items() if name not in muted}


def _command(said: ParsedWords, as_torchrun: bool) -> LaunchCommand:
    defaults = _TORCHRUN_DEFAULTS if as_torchrun else {}
    values: dict[str, Any] = {**defaults, **said.values}
    values.pop("", None)
    parts = {name[5:]: values.pop(name) for name in list(values) if name.startswith("rdzv_")}
    words = tuple(said.words)
    is_module = values.pop("module", False)
    if not words or not words[0]:
        raise UserError("-m names no module; write `-m package.train`" if is_module else NOTHING)
    needless = tuple(name for option, name in said.names.items() if not option.field)
    return LaunchCommand(
        words=words[1:] if is_module else words,
        module=words[0] if is_module else None,
        rdzv=Rendezvous(**parts),
        launcher_flags=tuple(said.foreign),
        as_torchrun=as_torchrun,
        needless=needless,
        **values,
    )


def _checked(command: LaunchCommand) -> LaunchCommand:
    """Refuse what contradicts itself."""
    if command.module and command.no_python:
        raise UserError("-m and --no-python contradict each other; leave one out")
    if command.standalone and command.nodes and command.nodes.least > 1:
        raise UserError(
            f"--standalone is one host and --nnodes {command.nodes} are more; leave one out"
        )
    command.check_launcher(command.launcher)
    return command
