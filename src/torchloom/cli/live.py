"""What this user's plane knows of jobs right now, for verbs that read records."""

from typing import Any

from torchloom.cli.shapes import with_both_states
from torchloom.errors import LoomError

_PATIENCE = 2.0  # seconds; whoever only looks does not wait for a plane that is busy

Live = dict[str, Any]


def jobs(ids: list[str]) -> dict[str, Live]:
    """Return what the plane knows of these jobs, by id; nothing where there is no plane."""
    return {job["id"]: job for job in _ask("jobs", ids=ids) or ()}


def strangers(limit: int) -> list[Live]:
    """Return the jobs that only the plane knows: they wait, run as an account, or came alone."""
    return [with_both_states(job) for job in _ask("jobs", strangers=True, limit=limit) or ()]


def stranger(name: str | None) -> Live | None:
    """Return such a job with its ranks, by whatever name it is meant."""
    found = _ask("job", job=name or "")
    is_one = found and (not found["scheduler"] or not _has_run(found))
    return with_both_states(found) if is_one else None


def is_of_the_queue(job: Live) -> bool:
    """Tell whether a job that has no run was submitted to the plane."""
    return bool(job.get("facts", {}).get("submitted"))


def _has_run(job: Live) -> bool:
    is_accounts = bool(job["facts"].get("account"))  # its folder is not in this state folder
    return not is_of_the_queue(job) or ("log_dir" in job["facts"] and not is_accounts)


def job(app_id: str) -> Live | None:
    """Return one job with its ranks as the plane sees them."""
    found: Live | None = _ask("job", job=app_id)
    return found


def rank_of(live: Live | None, role: str, rank: int) -> Live:
    """Return what the plane knows of a rank; nothing when it has not heard of it."""
    ranks = live["ranks"] if live else []
    return next((r for r in ranks if (r["role"], r["rank"]) == (role, rank)), {})


def labels(live: Live | None) -> list[tuple[str, str]]:
    """Return what a program has said of its run for people, as lines."""
    from torchloom.cli.output import printable

    found = live or {}
    tags, notes = ", ".join(found.get("tags", ())), found.get("notes", "")
    lines = (("tags", tags), ("notes", " ".join(notes.split())))
    return [(name, printable(text)) for name, text in lines if text]


def _ask(name: str, **facts: Any) -> Any:
    from torchloom.client import places, plane

    if not places.door().exists():
        return None
    try:
        return plane.ask(name, _PATIENCE, **facts)
    except (LoomError, OSError):  # it does not know the job, or is on its way out
        return None
