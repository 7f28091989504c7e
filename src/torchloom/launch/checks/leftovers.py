"""What crashed launches left on this host: processes, half-made folders, sockets, shared memory."""

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchloom.launch.checks.finding import Finding, Place, ok, problem
from torchloom.launch.checks.survivors import PROC, Fate, Jobs, Survivor
from torchloom.launch.identity import ProcessId
from torchloom.launch.shared_memory import HOME_FILE

SHM_PREFIX = "loom-"  # of everything of a job in /dev/shm; its id follows
YOUNG = 60.0  # seconds during which somebody may still be at work on a thing nobody knows
_HALF_MADE = (".new-", ".rm-")
_BOUNDS = "-._#"  # what may follow a job's id in a name


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that nobody needs any more."""

    kind: str  # process, folder, file, socket
    name: str
    job: str = ""
    process: ProcessId | None = None
    path: Path | None = None


def left(place: Place) -> Iterator[Finding]:
    """Tell what `--clean` would end or remove."""
    found = find(place)
    if not found:
        yield ok("leftovers", "none")
        return
    kinds = [each.kind for each in found]
    counts = ", ".join(f"{kinds.count(k)} {_plural(k, kinds.count(k))}" for k in sorted(set(kinds)))
    jobs = sorted({each.job for each in found if each.job})
    text = counts + (f" of {', '.join(jobs[:3])}" if jobs else "")
    yield problem("leftovers", text, "`loom doctor --clean` ends and removes them")


def find(place: Place) -> list[Leftover]:
    """Return what is left; nothing of a living run, nothing of another user."""
    jobs = Jobs(place.home)
    return [
        *_processes(jobs),
        *_half_made(place.home / "runs"),
        *_of_runtime(place.runtime, jobs),
        *_shared_memory(place.shm, jobs),
    ]


def _processes(jobs: Jobs) -> Iterator[Leftover]:
    mine = _line_of(os.getpid())
    for each in jobs.all.values():
        if each.job and not each.agent_of and each.process.pid not in mine and _is_left(jobs, each):
            name = f"{each.process.pid} {each.words}"
            yield Leftover("process", name, each.job, process=each.process)


def _is_left(jobs: Jobs, one: Survivor) -> bool:
    fate = jobs.fate(one.job) if jobs.is_ours(one) else Fate.LIVING
    return fate is Fate.OVER or (fate is Fate.UNKNOWN and jobs.is_abandoned(one))


def _half_made(runs: Path) -> Iterator[Leftover]:
    for path in _mine(runs):
        if path.name.startswith(_HALF_MADE) and _is_old(path):
            yield Leftover("folder", str(path), path=path)


def _of_runtime(runtime: Path, jobs: Jobs) -> Iterator[Leftover]:
    """Yield sockets that nobody answers, and folders of runs that are over.

    Files stay: a record that found no room on its disk waits here.
    """
    for path in [*_mine(runtime), *(inner for each in _mine(runtime) for inner in _mine(each))]:
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode):
            if _is_old(path) and not _answers(path):
                yield Leftover("socket", str(path), path=path)
        elif stat.S_ISDIR(mode) and _is_over(path, runtime, jobs):
            yield Leftover("folder", str(path), path.name, path=path)


def _is_over(path: Path, runtime: Path, jobs: Jobs) -> bool:
    return path.parent == runtime and jobs.fate(path.name) is Fate.OVER and not jobs.of(path.name)


def _shared_memory(shm: Path, jobs: Jobs) -> Iterator[Leftover]:
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


def _is_another_home(path: Path, jobs: Jobs) -> bool:
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
    """Tell whether anybody listens at a socket; only a clear refusal says no."""
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
    """Return a process and all above it: whoever asks must not end itself."""
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
