"""Which job is meant: by id, the beginning of one, a name, a handle, `@`, or nothing at all."""

from torchloom.errors import Ambiguous, NotFound, UserError
from torchloom.weaver.jobs import Jobs
from torchloom.weaver.store.rows import Job

LAST = "@"


class NoJob(UserError):
    """No job was named, and not exactly one is active."""

    code = "no_job"


def job_named(jobs: Jobs, name: str) -> Job:
    """Return the job that somebody means, or say in words why none is."""
    if name == LAST and (newest := jobs.all()):
        return newest[0]
    if not name or name == LAST:
        return _only(jobs)
    if (exact := jobs.find(name)) is not None:
        return exact
    known = jobs.all()
    for job in known:
        if name in (job.name, job.handle):
            return job  # the newest
    found = [job for job in known if job.id.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("job", name, [job.id for job in found])
    if not found:
        raise NotFound("job", name, [job.id for job in known] + [job.name for job in known])
    return found[0]


def _only(jobs: Jobs) -> Job:
    active = jobs.active()
    if len(active) == 1:
        return active[0]
    if not active:
        raise NoJob("no job is active; name one of `loom ls`")
    raise NoJob(f"{len(active)} jobs are active; name one: {', '.join(job.id for job in active)}")
