"""Whether what a job waits for has happened."""

from collections.abc import Callable, Mapping
from enum import Enum

from .job import Cause, Job, State

Test = Callable[[Job], bool]


class Verdict(Enum):
    """What became of a dependency."""

    WAITING = 0
    SATISFIED = 1
    IN_VAIN = 2


def _is_well(job: Job) -> bool:
    return job.exit == 0 and job.cause is not Cause.LIMIT


# kind: what must be true of the other job, once it has happened
HAPPENED: Mapping[str, Test] = {"after": lambda job: job.runs > 0}
ENDED: Mapping[str, Test] = {
    "afterok": _is_well,
    "afternotok": lambda job: not _is_well(job) and job.runs > 0,
    "afterany": lambda job: job.runs > 0,
}


def judge(job: Job, jobs: Mapping[str, Job]) -> Verdict:
    """Look at everything the job waits for."""
    seen = [_judge(kind, key, jobs) for kind, keys in job.depend for key in keys]
    if Verdict.IN_VAIN in seen:
        return Verdict.IN_VAIN
    return Verdict.WAITING if Verdict.WAITING in seen else Verdict.SATISFIED


def _judge(kind: str, key: str, jobs: Mapping[str, Job]) -> Verdict:
    others = [job for job in jobs.values() if key in (job.key, f"{job.number}[]")]
    if kind in HAPPENED:
        if all(HAPPENED[kind](other) for other in others):
            return Verdict.SATISFIED
        dead = any(other.state is State.FINISHED and not other.runs for other in others)
        return Verdict.IN_VAIN if dead else Verdict.WAITING
    if any(other.state is not State.FINISHED for other in others):
        return Verdict.WAITING
    return Verdict.SATISFIED if all(map(ENDED[kind], others)) else Verdict.IN_VAIN
