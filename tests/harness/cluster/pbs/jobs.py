"""Jobs in PBS's words: identifiers, states, exit codes, comments, output paths."""

import re
import time
from collections.abc import Iterable

from ..batch.job import Cause, Job, State
from .words import UNKJOBID, Rejected

LETTERS = {
    State.QUEUED: "Q",
    State.HELD: "H",
    State.RUNNING: "R",
    State.SUSPENDED: "S",
    State.ENDING: "E",
    State.FINISHED: "F",
}
SUBSTATES = {"Q": 10, "H": 20, "W": 30, "R": 42, "S": 45, "E": 51, "B": 42, "X": 92}
WALLTIME_EXCEEDED = -29  # JOB_EXEC_KILL_WALLTIME
IDENTIFIER = re.compile(r"(\d+)(\[(\d*)\])?(?:\.([A-Za-z0-9.-]+))?(?:@\S+)?")


def identifier(job: Job, server: str) -> str:
    """Return the job's name, `12.ctl` or `12[3].ctl`."""
    return f"{job.key}.{server}"


def array_identifier(number: int, server: str) -> str:
    """Return the name of a whole array."""
    return f"{number}[].{server}"


def letter(job: Job) -> str:
    """Return the state as one letter."""
    if job.state is State.QUEUED and job.after > time.time():
        return "W"
    return LETTERS[job.state]


def exit_status(job: Job) -> int | None:
    """Return Exit_status; none while there is none."""
    if job.exit is None:
        return None
    if job.cause is Cause.LIMIT:
        return WALLTIME_EXCEEDED
    return 256 - job.exit if job.exit < 0 else job.exit


def substate(job: Job) -> int:
    """Return the number behind the letter."""
    if job.state is not State.FINISHED:
        return SUBSTATES[letter(job)]
    if job.cause in (Cause.KILLED, Cause.DEPENDENCY):
        return 91
    return 92 if exit_status(job) == 0 else 93


def comment(job: Job) -> str:
    """Return what the scheduler and the server note of a job."""
    if not job.hosts:
        if job.state is State.FINISHED:
            return "Job deleted" if job.cause is Cause.KILLED else "Job deleted, dependency failed"
        return "Not Running: Insufficient amount of resource: ncpus"
    stamp = time.strftime("%a %b %d at %H:%M", time.localtime(job.started))
    text = f"Job run at {stamp} on {exec_vnode(job)}"
    if job.state is not State.FINISHED:
        return text
    if job.cause is Cause.LIMIT:
        return f"{text} and exceeded resource walltime"
    if job.cause is Cause.KILLED:
        return f"{text} and terminated"
    return f"{text} and {'finished' if job.exit == 0 else 'failed'}"


def exec_host(job: Job) -> str:
    """Return the job's hosts as `n1/0*2+n2/0`."""
    parts = []
    for host, chunk in zip(job.hosts, job.chunks, strict=True):
        parts.append(f"{host}/0*{chunk.cpus}" if chunk.cpus != 1 else f"{host}/0")
    return "+".join(parts)


def exec_vnode(job: Job) -> str:
    """Return what the job has on each host as `(n1:ncpus=2)+(n2:ncpus=2)`."""
    parts = []
    for host, chunk in zip(job.hosts, job.chunks, strict=True):
        gpus = f":ngpus={chunk.gpus}" if chunk.gpus else ""
        memory = f":mem={chunk.memory_mb * 1024}kb" if chunk.memory_mb else ""
        parts.append(f"({host}:ncpus={chunk.cpus}{gpus}{memory})")
    return "+".join(parts)


def output_path(job: Job, stream: str, server: str) -> str:
    """Return where `o` or `e` goes: as asked for, or `NAME.o12` where qsub was called."""
    index = "" if job.index is None else f".{job.index}"
    asked = job.vendor["paths"].get(stream)
    if asked is None:
        return f"{job.vendor['workdir']}/{job.name}.{stream}{job.number}{index}"
    path = asked.rpartition(":")[2].replace("^array_index^", str(job.index))
    path = path if path.startswith("/") else f"{job.vendor['workdir']}/{path}"
    if path.endswith("/"):
        path += f"{identifier(job, server)}.{'OU' if stream == 'o' else 'ER'}"
    return path


def find(word: str, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that an identifier names; for an array, all its subjobs."""
    match = IDENTIFIER.fullmatch(word)
    if not match:
        raise Rejected(UNKJOBID, f" {word}")
    number, bracket, index, _ = match.groups()
    found = [job for job in jobs if job.number == int(number)]
    if index:
        found = [job for job in found if job.index == int(index)]
    elif bracket is None:
        found = [job for job in found if job.index is None]
    return found
