"""Jobs in LSF's words: identifiers, states, exit codes and reasons, hosts, files."""

import re
from collections.abc import Iterable

from ..batch.job import Cause, Job, State

IDENTIFIER = re.compile(r"(\d+)(?:\[([\d,:-]+)\])?")
REASONS = {
    Cause.LIMIT: "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    Cause.KILLED: "TERM_OWNER: job killed by owner",
    Cause.HOST: "TERM_ZOMBIE: job exited while LSF is not available",
}


def stat(job: Job, silent: Iterable[str] = ()) -> str:
    """Return the state; a job of a host that is silent is in an unknown one."""
    if job.state in (State.RUNNING, State.SUSPENDED) and job.places[0] in silent:
        return "UNKWN"
    if job.state is State.FINISHED:
        return "DONE" if job.exit == 0 else "EXIT"
    if job.state is State.SUSPENDED:
        return "SSUSP" if job.by_system else "USUSP"
    names = {State.QUEUED: "PEND", State.HELD: "PSUSP"}
    return names.get(job.state, "RUN")


def exit_code(job: Job) -> int | None:
    """Return the exit code; none for a job that ended well or has not ended."""
    if job.state is not State.FINISHED or not job.exit:
        return None
    return 128 - job.exit if job.exit < 0 else job.exit


def exit_reason(job: Job) -> str:
    """Return why LSF ended it."""
    return REASONS.get(job.cause, "") if stat(job) == "EXIT" else ""


def slots(job: Job) -> dict[str, int]:
    """Return each host of the job and how many slots it has there; none while it waits."""
    found: dict[str, int] = {}
    for host, chunk in zip(job.hosts, job.chunks, strict=False):
        found[host] = found.get(host, 0) + chunk.cpus
    return found


def exec_host(job: Job) -> str:
    """Return the hosts as `2*n1:n2`."""
    return ":".join(host if n == 1 else f"{n}*{host}" for host, n in slots(job).items())


def name(job: Job) -> str:
    """Return the name, with the index of an element."""
    return job.name if job.index is None else f"{job.name}[{job.index}]"


def path(job: Job, asked: str) -> str:
    """Return a file that was asked for, with `%J` and `%I` in it."""
    index = 0 if job.index is None else job.index
    text = asked.replace("%J", str(job.number)).replace("%I", str(index))
    return text if text.startswith("/") else f"{job.cwd}/{text}"


def find(word: str, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs an identifier names; the number alone names all elements of an array."""
    match = IDENTIFIER.fullmatch(word)
    if not match:
        return []
    found = [job for job in jobs if job.number == int(match[1])]
    if match[2] is None:
        return found
    wanted = set(indices(match[2]))
    return [job for job in found if job.index in wanted]


def indices(text: str) -> list[int]:
    """Return `1-5:2,9` as numbers; nothing where it is not of that form."""
    found: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:-(\d+)(?::([1-9]\d*))?)?", item.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            return []
        found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return found
