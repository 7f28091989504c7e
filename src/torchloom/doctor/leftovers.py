"""What crashed launches left on this host: processes, half-made folders, sockets, shared memory."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torchloom.doctor.findings import CheckFinding, HostPlace, ok, problem
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.host.shared_memory import HOME_FILE
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE

PROC = Path("/proc")
_INIT = 1
SHM_PREFIX = "loom-"  # of everything of a job in /dev/shm; its id follows
YOUNG = 60.0  # seconds during which a thing without a record may still be in the making
_HALF_MADE = (".new-", ".rm-")
_BOUNDS = "-._#"  # what may follow a job's id in a name
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds for the kernel to remove a killed process


class Fate(StrEnum):
    """What is known of a job."""

    LIVING = "living"
    OVER = "over"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Survivor:
    """A living process of this user that belongs to a job."""

    process: ProcessIdentity
    parent: int
    words: str
    job: str = ""  # the job it is a part of
    agent_of: str = ""  # the job whose agent it is
    home: Path | None = None  # its own state folder: another shell may have another one


class JobProcesses:
    """All processes of this user's jobs, at one instant."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.all = {each.process.pid: each for each in survivors()}
        self._watched = {each.agent_of for each in self.all.values() if each.agent_of}

    def fate(self, job: str) -> Fate:
        """Tell whether a job runs: by its agents on this host first, then by its record."""
        if job in self._watched:
            return Fate.LIVING
        if not job or job.startswith(".") or "/" in job:
            return Fate.UNKNOWN
        try:
            record = RunFolder(self.home / "runs" / job).record().truth()
        except OSError:
            return Fate.UNKNOWN
        except (ValueError, KeyError, TypeError, AttributeError):  # the record is damaged
            return Fate.OVER
        return Fate.OVER if record.is_over() else Fate.LIVING

    def is_ours(self, one: Survivor) -> bool:
        """Tell whether a process is of this state folder, or of one that is gone."""
        return one.home is None or one.home == self.home or not one.home.exists()

    def of(self, job: str) -> list[Survivor]:
        """Return the living processes of one job, its agents too."""
        return [each for each in self.all.values() if job in (each.job, each.agent_of)]

    def is_abandoned(self, one: Survivor) -> bool:
        """Tell whether the process that started this one has ended.

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
        process = ProcessIdentity.of(int(folder.name)) if job or agent_of else None
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
        return True  # it is gone: no child of any process


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is no longer needed."""

    kind: str  # process, folder, file, socket
    name: str
    job: str = ""
    process: ProcessIdentity | None = None
    path: Path | None = None


def left(place: HostPlace) -> Iterator[CheckFinding]:
    """Report what `--clean` would end or remove."""
    found = find(place)
    if not found:
        yield ok("leftovers", "none")
        return
    kinds = [each.kind for each in found]
    counts = ", ".join(f"{kinds.count(k)} {_plural(k, kinds.count(k))}" for k in sorted(set(kinds)))
    jobs = sorted({each.job for each in found if each.job})
    text = counts + (f" of {', '.join(jobs[:3])}" if jobs else "")
    yield problem("leftovers", text, "`loom doctor --clean` ends and removes them")


def find(place: HostPlace) -> list[Leftover]:
    """Return what is left; nothing of a living run, nothing of another user."""
    jobs = JobProcesses(place.home)
    return [
        *_processes(jobs),
        *_half_made(place.home / "runs"),
        *_of_runtime(place.runtime, jobs),
        *_shared_memory(place.shm, jobs),
    ]


def _processes(jobs: JobProcesses) -> Iterator[Leftover]:
    mine = _line_of(os.getpid())
    for each in jobs.all.values():
        if each.job and not each.agent_of and each.process.pid not in mine and _is_left(jobs, each):
            name = f"{each.process.pid} {each.words}"
            yield Leftover("process", name, each.job, process=each.process)


def _is_left(jobs: JobProcesses, one: Survivor) -> bool:
    fate = jobs.fate(one.job) if jobs.is_ours(one) else Fate.LIVING
    return fate is Fate.OVER or (fate is Fate.UNKNOWN and jobs.is_abandoned(one))


def _half_made(runs: Path) -> Iterator[Leftover]:
    for path in _mine(runs):
        if path.name.startswith(_HALF_MADE) and _is_old(path):
            yield Leftover("folder", str(path), path=path)


def _of_runtime(runtime: Path, jobs: JobProcesses) -> Iterator[Leftover]:
    """Yield sockets without a listener, and folders of runs that are over.

    Files stay: a record that found no room on its disk waits here.
    """
    for path in [*_mine(runtime), *(inner for each in _mine(runtime) for inner in _mine(each))]:
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode):
            if _is_old(path) and not _answers(path):
                yield Leftover("socket", str(path), path=path)
        elif stat.S_ISDIR(mode) and _is_over(path, runtime, jobs):
            yield Leftover("folder", str(path), path.name, path=path)


def _is_over(path: Path, runtime: Path, jobs: JobProcesses) -> bool:
    return path.parent == runtime and jobs.fate(path.name) is Fate.OVER and not jobs.of(path.name)


def _shared_memory(shm: Path, jobs: JobProcesses) -> Iterator[Leftover]:
    used = set(_open_files()) if any(shm.glob(f"{SHM_PREFIX}*")) else set()
    for path in _mine(shm):
        if not path.name.startswith(SHM_PREFIX):
            continue
        ids = _ids(path.name.removeprefix(SHM_PREFIX))
        known = [each for each in ids if jobs.fate(each) is not Fate.UNKNOWN]
        job = known[0] if known else ids[0].removesuffix(f"-{os.getuid()}")
        busy = any(each == str(path) or each.startswith(f"{path}/") for each in used)
        if busy or any(jobs.of(each) for each in ids) or jobs.fate(job) is Fate.LIVING:
            continue
        if known or (_is_old(path) and not _is_another_home(path, jobs)):
            yield Leftover("folder" if path.is_dir() else "file", str(path), job, path=path)


def _is_another_home(path: Path, jobs: JobProcesses) -> bool:
    """Tell whether a run of another state folder, which is still there, left this."""
    with contextlib.suppress(OSError):
        home = Path((path / HOME_FILE).read_text())
        return home != jobs.home and home.is_dir()
    return False


def _ids(name: str) -> list[str]:
    """Return every id that a name may begin with, the longest first: `a-1` and `a` for `a-1`."""
    ends = [at for at, char in enumerate(name) if char in _BOUNDS and at]
    return [name, *(name[:at] for at in reversed(ends))]


def _mine(folder: Path) -> Iterable[Path]:
    """Return what is in a folder of ours and belongs to this user."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return []
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        mine = [each for each in entries if each.stat(follow_symlinks=False).st_uid == os.getuid()]
    except OSError:
        return []
    return [Path(each.path) for each in mine]


def _is_old(path: Path) -> bool:
    try:
        return path.lstat().st_mtime < time.time() - YOUNG
    except OSError:
        return False


def _answers(path: Path) -> bool:
    """Tell whether a process listens at a socket; only a refused connection means no."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.settimeout(0.2)
            try:
                probe.connect(str(path))
                return True
            except ConnectionRefusedError:
                continue
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    return True
    return False


def _open_files() -> Iterator[str]:
    """Yield every file in shared memory that a process has open or mapped."""
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"{entry.path}/fd"):
                with contextlib.suppress(OSError):
                    yield os.readlink(fd.path)
        with contextlib.suppress(OSError), open(f"{entry.path}/maps", errors="replace") as maps:
            yield from (line.split(None, 5)[5].strip() for line in maps if SHM_PREFIX in line)


def _line_of(pid: int) -> set[int]:
    """Return a process and its ancestors: the caller must not end itself."""
    line = set()
    while pid > 1 and pid not in line:
        line.add(pid)
        try:
            text = (PROC / str(pid) / "stat").read_bytes()
            pid = int(text.rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            break
    return line


def _plural(kind: str, count: int) -> str:
    return kind if count == 1 else "processes" if kind == "process" else f"{kind}s"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of a leftover: gone, or why not."""

    leftover: Leftover
    done: bool
    text: str


def clean(place: HostPlace) -> Iterator[Cleaned]:
    """End all processes first: what they hold in shared memory is free only then."""
    found = find(place)
    processes = [each for each in found if each.process]
    yield from end(processes)
    again = find(place) if processes else found
    for each in again:
        if each.path is not None:
            yield _remove(each)


def end(found: Sequence[Leftover], grace: float = GRACE) -> Iterator[Cleaned]:
    """Send SIGTERM to all, wait one grace for all, send SIGKILL to those that remain."""
    for each in found:
        if each.process:
            each.process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for each in found:
        if each.process is None:
            continue
        gone = each.process.wait_exit(max(0.0, deadline - time.monotonic()))
        if not gone:
            each.process.send(signal.SIGKILL)
            gone = each.process.wait_exit(PATIENCE)
        yield Cleaned(each, gone, "ended" if gone else "the kernel does not let it end")


def _remove(each: Leftover) -> Cleaned:
    assert each.path is not None
    try:
        if each.kind == "folder":
            shutil.rmtree(each.path)
        else:
            each.path.unlink()
    except FileNotFoundError:
        return Cleaned(each, True, "gone already")
    except OSError as error:
        return Cleaned(each, False, f"cannot be removed: {error.strerror}")
    return Cleaned(each, True, "removed")
