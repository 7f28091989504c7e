"""What is to be started and what comes out: words for a launcher, nothing done yet."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from torchloom.launch.assembly.topology import Topology
from torchloom.specs.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One command, on every place of a topology."""

    command: tuple[str, ...]
    topology: Topology
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
class Command:
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

    commands: tuple[Command, ...]
    files: tuple[tuple[Path, str], ...] = ()
    notes: tuple[str, ...] = ()
