"""Read and write the host files of MPI launchers, schedulers and DeepSpeed."""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import product
from pathlib import Path

from torchloom.errors import UserError, shorten
from torchloom.specs.dataclass import dataclass

MOST_HOSTS = 65_536  # a list that asks for more is a mistake, and would only fill the memory
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


class BadNodelist(UserError):
    """A host list that cannot be expanded."""

    code = "bad_nodelist"

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        super().__init__(
            f"cannot expand the host list {shorten(text)!r}: {why}; write it like `n[1-3,07],gpu5`"
        )


def expand(text: str) -> tuple[str, ...]:
    """Return every host of a list such as `n[1-3,07-09],gpu-[01-02]-[3,5]`, in Slurm's order."""
    hosts: list[str] = []
    for item in _items(text):
        for host in _expand_item(text, item):
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise BadNodelist(text, f"more than {MOST_HOSTS} hosts")
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Return the numbers behind `2(x3),1`, Slurm's form of per-node counts."""
    counts: list[int] = []
    for word in filter(None, text.split(",")):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", word.strip(), re.ASCII)
        if match is None:
            raise BadNodelist(text, f"{shorten(word)!r} is not a count")
        counts += [int(match[1])] * min(int(match[2] or 1), MOST_HOSTS)
    return tuple(counts)


def _items(text: str) -> Iterator[str]:
    end = 0
    for match in _ITEM.finditer(text):
        if text[end : match.start()].strip(", \t\r\n"):
            break
        yield match[0]
        end = match.end()
    if text[end:].strip(", \t\r\n"):
        raise BadNodelist(text, "a bracket is not closed")


def _expand_item(text: str, item: str) -> Iterator[str]:
    parts = _PART.split(item)  # text, inside of a bracket, text, inside, ..., text
    texts, brackets = parts[::2], [_numbers(text, inside) for inside in parts[1::2]]
    if not brackets:
        yield item
        return
    # Slurm turns the last bracket fastest, then the first, the second, and so on.
    *outer, last = brackets
    for chosen in product(*reversed(outer), last):
        words = [*reversed(chosen[:-1]), chosen[-1]]
        yield texts[0] + "".join(word + after for word, after in zip(words, texts[1:], strict=True))


def _numbers(text: str, inside: str) -> list[str]:
    numbers: list[str] = []
    for word in inside.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise BadNodelist(text, f"{shorten(word)!r} is not a number or a range")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low >= MOST_HOSTS:
            raise BadNodelist(
                text, f"{shorten(word)!r} is not a range of at most {MOST_HOSTS} hosts"
            )
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers


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
        raise BadHostfile(
            f"{shorten(host)!r} is not a host name; a host file has one host per line"
        )
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
