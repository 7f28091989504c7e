"""The processes of jobs on this host, read from /proc, and whether their jobs still live."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torchloom.launch.folder import RunFolder
from torchloom.launch.identity import ProcessId
from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE

PROC = Path("/proc")
_INIT = 1


class Fate(StrEnum):
    """What is known of a job."""

    LIVING = "living"
    OVER = "over"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Survivor:
    """A living process of this user that belongs to a job."""

    process: ProcessId
    parent: int
    words: str
    job: str = ""  # the job it is a part of
    agent_of: str = ""  # the job it looks after
    home: Path | None = None  # its own state folder: another shell may have another one


class Jobs:
    """All processes of this user's jobs, at one instant."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.all = {each.process.pid: each for each in survivors()}
        self._watched = {each.agent_of for each in self.all.values() if each.agent_of}

    def fate(self, job: str) -> Fate:
        """Tell whether a job lives: by its agents on this host first, then by its record."""
        if job in self._watched:
            return Fate.LIVING
        if not job or job.startswith(".") or "/" in job:
            return Fate.UNKNOWN
        try:
            record = RunFolder(self.home / "runs" / job).record().truth()
        except OSError:
            return Fate.UNKNOWN
        except (ValueError, KeyError, TypeError, AttributeError):  # spoiled, and nobody's any more
            return Fate.OVER
        return Fate.OVER if record.is_over() else Fate.LIVING

    def is_ours(self, one: Survivor) -> bool:
        """Tell whether a process is of this state folder, or of one that is gone."""
        return one.home is None or one.home == self.home or not one.home.exists()

    def of(self, job: str) -> list[Survivor]:
        """Return the living processes of one job, its agents too."""
        return [each for each in self.all.values() if job in (each.job, each.agent_of)]

    def is_abandoned(self, one: Survivor) -> bool:
        """Tell whether nobody started this process who still lives.

        A job without a record here may be another host's, its ranks started by a native launcher:
        then the topmost process of the job has a parent that is not init.
        """
        top = one
        while (above := self.all.get(top.parent)) and above.job == one.job:
            top = above
        return top.parent == _INIT or _reaps(top.parent)


def survivors(proc: Path = PROC) -> Iterator[Survivor]:
    """Yield every living process of this user that carries a job's id."""
    if not proc.is_dir():
        return
    for entry in os.scandir(proc):
        if entry.name.isdigit() and (found := _survivor(Path(entry.path))):
            yield found


def _survivor(folder: Path) -> Survivor | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        env = _variables((folder / "environ").read_bytes())
        job, agent_of = env.get(JOB_VARIABLE, ""), env.get(AGENT_VARIABLE, "")
        process = ProcessId.of(int(folder.name)) if job or agent_of else None
        if process is None:
            return None
        parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, ValueError):  # gone, or nothing for us to read
        return None
    home = env.get("LOOM_HOME") or (env["HOME"] + "/.torchloom" if env.get("HOME") else "")
    return Survivor(process, parent, words.strip(), job, agent_of, Path(home) if home else None)


def _variables(data: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _reaps(pid: int) -> bool:
    """Tell whether a process only collects orphans, as a user's systemd does."""
    try:
        return (PROC / str(pid) / "comm").read_text().strip() == "systemd"
    except OSError:
        return True  # it is gone: nobody's child
