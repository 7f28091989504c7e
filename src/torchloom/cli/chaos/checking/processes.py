"""Who lives, by the kernel's own word."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PARTS = {
    "torchloom.weaver": "weaver",
    "torchloom.server": "server",
    "torchloom.launch.node_agent": "agent",
}
_PAGE = 4096  # bytes


@dataclass(frozen=True, slots=True)
class Process:
    """One process: who it is, whether it is a mere entry, how much memory it has."""

    pid: int
    started: int
    state: str
    memory: int  # bytes
    words: tuple[str, ...]
    env: frozenset[str]

    @property
    def key(self) -> tuple[int, int]:
        """Return what no other process ever has: its number and when it began."""
        return (self.pid, self.started)

    @property
    def part(self) -> str:
        """Return which part of a plane it is, if one."""
        if any(word.endswith("nats-server") for word in self.words[:1]):
            return "nats"
        return next((_PARTS[word] for word in self.words if word in _PARTS), "")


def living(proc: Path) -> Iterator[Process]:
    """Yield all that lives; one that has ended and is not waited for does not."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has just gone
                found = _read(entry)
                if found.state not in "ZX":
                    yield found


def _read(entry: Path) -> Process:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return Process(
        pid=int(entry.name),
        started=int(fields[19]),
        state=fields[0],
        memory=int(fields[21]) * _PAGE,
        words=tuple(_texts(entry / "cmdline")),
        env=frozenset(_texts(entry / "environ")),
    )


def _texts(path: Path) -> list[str]:
    try:
        return [one.decode(errors="replace") for one in path.read_bytes().split(b"\0") if one]
    except PermissionError:  # another user's
        return []


def of_job(found: Iterator[Process], job: str) -> list[Process]:
    """Return those that carry a job's name in their environment: ranks and agents of it."""
    names = {f"LOOM_JOB={job}", f"LOOM_AGENT_OF={job}"}
    return [one for one in found if names & one.env]
