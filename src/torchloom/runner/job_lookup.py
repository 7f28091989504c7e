"""Find the job a person means: by id, its beginning, its name, a handle, or `@`.

A job is a run, which has a folder, or only the plane knows it: it waits in the queue, or was not
launched by loom. The plane is asked first, then the folders are read: a job that gets its run in
between is in both answers, and in neither the other way round.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

from torchloom.errors import Ambiguous, LoomError, NotFound, UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.schedulers import LOCAL

NEWEST = "@"
PATIENCE = 2.0  # seconds; a read does not wait for a busy plane
_REMEDY = "`loom ls` lists the jobs"

Live = dict[str, Any]  # a job as the plane knows it


class _Candidate(NamedTuple):
    """What a reference is compared with."""

    id: str
    name: str
    created_at: str
    is_active: bool

    @classmethod
    def of_run(cls, run: RunRecord) -> Self:
        return cls(run.id, run.name, run.created_at, not run.is_over())

    @classmethod
    def of_job(cls, job: Live) -> Self:
        return cls(job["id"], job["name"], job["created_at"], job["ended_at"] is None)


class JobWithoutRun(NotFound):
    """The job is known, and has no run: it waits, or was not launched by loom."""

    def __init__(self, job: Live) -> None:
        self.job = job
        why = f"it is {job['state']} {job['reason']}".strip()
        super().__init__("run of job", job["id"], (), why)


def find_job(reference: str | None) -> RunRecord:
    """Return the one run that is meant; left out, the only one that is active."""
    found = find_run_or_job(reference)
    if isinstance(found, RunRecord):
        return found
    raise JobWithoutRun(found)


def find_run_or_job(reference: str | None) -> RunRecord | Live:
    """Return the run that is meant, or the job with its ranks if only the plane knows it."""
    if reference and "://" in reference:
        return _of_id(_id_in(reference))
    if reference and (exact := catalog.record(reference)) is not None:
        return exact
    waiting = [_Candidate.of_job(job) for job in _plane_only_jobs(reference)]
    runs = {run.id: run for run in catalog.records()}
    known = [
        *map(_Candidate.of_run, runs.values()),
        *(job for job in waiting if job.id not in runs),
    ]
    known.sort(key=lambda one: datetime.fromisoformat(one.created_at), reverse=True)
    chosen = _only_active(known) if reference is None else _choose(reference, known)
    return _of_id(chosen.id, runs.get(chosen.id))


def live_job(job: str) -> Live | None:
    """Return one job with its ranks as the plane knows it."""
    found: Live | None = ask_plane("job", job=job)
    return found


def live_jobs(ids: list[str]) -> dict[str, Live]:
    """Return these jobs as the plane knows them, by id; empty without a plane."""
    return {job["id"]: job for job in ask_plane("jobs", ids=ids) or ()}


def is_of_the_queue(job: Live) -> bool:
    """Tell whether a job was submitted to the plane's queue."""
    return bool(job.get("facts", {}).get("submitted"))


def is_plane_only(job: Live) -> bool:
    """Tell whether a job has no run in this state folder."""
    is_accounts = bool(job["facts"].get("account"))  # its folder is elsewhere
    has_run = not is_of_the_queue(job) or "log_dir" in job["facts"]
    return not job["scheduler"] or is_accounts or not has_run


def ask_plane(name: str, **facts: Any) -> Any:
    """Ask this user's plane; None without one, and if it refuses or does not answer soon."""
    from torchloom.client import plane

    if not plane.door().exists():
        return None
    try:
        return plane.ask(name, PATIENCE, **facts)
    except (LoomError, OSError):  # it does not know the job, or is shutting down
        return None


def _plane_only_jobs(reference: str | None) -> list[Live]:
    """Return the jobs that only the plane knows and that a reference may mean."""
    if reference == "":
        return []
    facts: dict[str, Any] = {"named": reference}
    if reference is None or reference == NEWEST:
        facts = {"limit": 1} if reference else {"active": True}
    return ask_plane("jobs", strangers=True, **facts) or []


def _id_in(handle: str) -> str:
    from torchloom.specs.api import UnknownSchedulerException, parse_app_handle

    backend, _, app_id = parse_app_handle(handle)
    if backend not in LOCAL:
        raise UnknownSchedulerException(backend, LOCAL)
    return app_id


def _of_id(job: str, run: RunRecord | None = None) -> RunRecord | Live:
    """Return the run or job of an id; `run` is what a list has of it, which knows no ranks."""
    run = catalog.record(job) or run
    if run is None and (live := live_job(job)) is not None and live["id"] == job:
        if is_plane_only(live):
            return live
        run = catalog.record(job)  # it began meanwhile
    if run is None:
        raise NotFound("job", job, (), _REMEDY)
    return run


def _choose(reference: str, known: Sequence[_Candidate]) -> _Candidate:
    """Return the one of this id, else the newest of this name, else the only id that begins so."""
    named = [one for one in known if one.id == reference]
    named += [one for one in known if reference in (one.name, NEWEST)]
    if named:
        return named[0]
    begins = [one for one in known if reference and one.id.startswith(reference)]
    if len(begins) > 1:
        raise Ambiguous("job", reference, [one.id for one in begins])
    if not begins:
        names = [name for one in known for name in (one.id, one.name)]
        raise NotFound("job", reference, dict.fromkeys(names), _REMEDY)
    return begins[0]


def _only_active(known: Sequence[_Candidate]) -> _Candidate:
    active = [one for one in known if one.is_active]
    if not active:
        raise UserError("no job is active; name one, or @ for the newest")
    if len(active) > 1:
        raise Ambiguous("job", "(none named)", [one.id for one in active])
    return active[0]
