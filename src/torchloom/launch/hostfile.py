"""Read and write the host files of MPI launchers, schedulers and DeepSpeed."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from torchloom.errors import UserError, shorten
from torchloom.specs.dataclass import dataclass

Read = Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A host and how many ranks it takes; no number when the file does not say."""

    host: str
    slots: int | None = None


class Style(StrEnum):
    """How a launcher wants its hosts written."""

    OPEN_MPI = "host slots=N"
    MPICH = "host:N"
    REPEATED = "host, once a slot"
    NAMES = "host"


class MissingHostfile(UserError):
    """The file that should name the hosts is not there, or names none."""

    code = "missing_hostfile"

    def __init__(self, path: object, why: str = "no such file") -> None:
        super().__init__(
            f"no hosts from {shorten(str(path))!r}: {why}; "
            "set PBS_NODEFILE to the job's own file or pass --hostfile FILE"
        )


class BadHostfile(UserError):
    """A line that is no host."""

    code = "bad_hostfile"


def read_hosts(path: Path, read: Read = Path.read_text) -> tuple[HostSlots, ...]:
    """Return the hosts of a file in its order; a missing or empty one is an error."""
    try:
        hosts = parse_hosts(read(path))
    except OSError as error:
        raise MissingHostfile(path, error.strerror or "no such file") from error
    if not hosts:
        raise MissingHostfile(path, "it is empty")
    return hosts


def parse_hosts(text: str) -> tuple[HostSlots, ...]:
    """Read `host`, `host slots=4`, `host:4` or `host 4`, one a line; repeated hosts add up."""
    slots: dict[str, int | None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, count = _parse_line(words)
        if host in slots:
            slots[host] = (slots[host] or 1) + (count or 1)
        else:
            slots[host] = count
    return tuple(HostSlots(host, count) for host, count in slots.items())


def render_hosts(hosts: Sequence[HostSlots], style: Style) -> str:
    """Return the text of a host file; a host without a number has one slot."""
    return "".join(_render(each.host, each.slots or 1, style) for each in hosts)


def same_host(one: str, other: str) -> bool:
    """Whether two names mean one host: nodefiles have full names, `hostname` often a short one."""
    if _is_address(one) or _is_address(other):
        return one == other
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def index_of(host: str, hosts: Sequence[str]) -> int | None:
    """Return where a host is in a list, by short name."""
    return next((index for index, each in enumerate(hosts) if same_host(host, each)), None)


def _parse_line(words: Sequence[str]) -> tuple[str, int | None]:
    host, more = words[0], words[1:]
    if host.startswith("-"):  # it would become a flag of ssh or mpiexec
        raise BadHostfile(f"{shorten(host)!r} is no host name; one host a line in a host file")
    name, colon, count = host.rpartition(":")
    if colon and ":" not in name and _is_number(count):  # a bare IPv6 address has more colons
        return name, int(count)
    for word in more:
        if word.startswith("slots=") and _is_number(word[6:]):
            return host, int(word[6:])
    if more and _is_number(more[0]):
        return host, int(more[0])
    return host, None


def _render(host: str, slots: int, style: Style) -> str:
    match style:
        case Style.OPEN_MPI:
            return f"{host} slots={slots}\n"
        case Style.MPICH:
            return f"{host}:{slots}\n"
        case Style.REPEATED:
            return f"{host}\n" * slots
        case Style.NAMES:
            return f"{host}\n"


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word[:9]) > 0


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()
