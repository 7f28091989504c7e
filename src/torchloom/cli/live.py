"""What this user's plane knows of jobs right now, for verbs that read records."""

from typing import Any

from torchloom.errors import LoomError

_PATIENCE = 2.0  # seconds; whoever only looks does not wait for a plane that is busy

Live = dict[str, Any]


def jobs() -> dict[str, Live]:
    """Return the active jobs of the plane by id; none where there is no plane."""
    return {job["id"]: job for job in _ask("jobs", active=True) or ()}


def job(app_id: str) -> Live | None:
    """Return one job with its ranks as the plane sees them."""
    found: Live | None = _ask("job", job=app_id)
    return found


def rank_of(live: Live | None, role: str, rank: int) -> Live:
    """Return what the plane knows of a rank; nothing when it has not heard of it."""
    ranks = live["ranks"] if live else []
    return next((r for r in ranks if (r["role"], r["rank"]) == (role, rank)), {})


def _ask(name: str, **facts: Any) -> Any:
    from torchloom.client import places, plane

    if not places.door().exists():
        return None
    try:
        return plane.ask(name, _PATIENCE, **facts)
    except (LoomError, OSError):  # it does not know the job, or is on its way out
        return None
