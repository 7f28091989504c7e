"""Jobs and ranks as JSON, from a run's record and from what the plane knows."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from torchloom.cli.output import age, duration, paint
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.runner.job_lookup import Live
from torchloom.specs.api import AppState, make_app_handle, parse_app_handle
from torchloom.specs.states import JobState, app_state_of, job_state_of

_PATIENCE = 10.0  # seconds for a list of jobs
STATES = (*JobState, *(s.name for s in AppState if s.name not in JobState.__members__))
_SAME = {"SUCCEEDED": "COMPLETED"}  # TorchX's name of one of our states
_COLOURS = {
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "PAUSED": "magenta",
    "RECOVERING": "yellow",
}


def plane_only_jobs(limit: int) -> list[Live]:
    """Return the jobs that only the plane knows: queued, of an account, or not launched by loom.

    A plane that does not answer is an error: without its answer the list of jobs is not whole.
    """
    from torchloom.client import plane
    from torchloom.client.errors import NoPlane

    if not plane.door().exists():
        return []
    try:
        found = plane.ask("jobs", _PATIENCE, strangers=True, limit=limit)
    except NoPlane:
        return []
    return [with_both_states(job) for job in found]


def live_rank(live: Live | None, role: str, rank: int) -> Live:
    """Return a rank as the plane knows it; empty if it is unknown."""
    ranks = live["ranks"] if live else []
    return next((r for r in ranks if (r["role"], r["rank"]) == (role, rank)), {})


def with_inner_ranks(record: RunRecord, live: Live | None) -> tuple[RankRecord, ...]:
    """Return the ranks of a run, with those that a launcher inside it has started.

    The plane alone knows these; the first of them may have the number of the launcher's own rank.
    """
    known = {(rank.role, rank.rank): rank for rank in record.ranks}
    roles = {rank.role for rank in record.ranks}
    found = [rank for rank in (live or {}).get("ranks", ()) if rank["role"] in roles]
    if record.is_over() or all((rank["role"], rank["rank"]) in known for rank in found):
        return record.ranks
    inner = {(one["role"], one["rank"]): one for one in found if one["state"] == "up"}
    shown = {key: _inner_rank(record, one) for key, one in inner.items()}
    return tuple(sorted((known | shown).values(), key=lambda rank: (rank.role, rank.rank)))


def _inner_rank(record: RunRecord, live: Live) -> RankRecord:
    launcher = next(rank for rank in record.ranks if rank.role == live["role"])
    process = launcher.process and replace(launcher.process, pid=live["pid"])
    return replace(launcher, rank=live["rank"], local_rank=live["local_rank"], process=process)


def labels(live: Live | None) -> list[tuple[str, str]]:
    """Return the tags and notes that a program gave its run."""
    from torchloom.cli.output import printable

    found = live or {}
    tags, notes = ", ".join(found.get("tags", ())), found.get("notes", "")
    lines = (("tags", tags), ("notes", " ".join(notes.split())))
    return [(name, printable(text)) for name, text in lines if text]


def progress(step: int | None, live: Live | None) -> dict[str, int | None]:
    """Return how many steps a job takes, and about how many seconds are left, if that is known."""
    total = (live or {}).get("facts", {}).get("total_steps")
    if step is None or live is None or type(total) is not int:
        return {"total_steps": None, "eta_seconds": None}
    paces = sorted(rank["step_seconds"] for rank in live["ranks"] if rank["step_seconds"])
    is_timed = paces and live["state"] == "RUNNING"
    left = round(max(0, total - step) * paces[len(paces) // 2]) if is_timed else None
    return {"total_steps": total, "eta_seconds": left}


def progress_words(step: int, total_steps: int | None, eta_seconds: int | None) -> str:
    """Return how far a job is: `120 of 500 (24 %), about 3m10s left`."""
    if not total_steps:
        return str(step)
    words = f"{step} of {total_steps} ({min(100, 100 * step // total_steps)} %)"
    return words if eta_seconds is None else f"{words}, about {duration(eta_seconds)} left"


def paint_state(state: str) -> str:
    return paint(state, _COLOURS.get(state))


def took(record: RunRecord) -> str:
    """Return the duration of a run so far."""
    return lasted(record.started_at, record.ended_at)


def lasted(started_at: str | None, ended_at: str | None) -> str:
    """Return the time from a start to an end, or until now."""
    if started_at is None or ended_at is None:
        return age(started_at)
    times = [datetime.fromisoformat(at) for at in (started_at, ended_at)]
    return duration((times[1] - times[0]).total_seconds())


def handle_of(record: RunRecord, scheduler: str = "local") -> str:
    return make_app_handle(scheduler, record.session, record.id)


def state_of(record: RunRecord, live: "Live | None") -> str:
    """Return a job's state: the plane's while it is active, else the record's."""
    return str(live["state"]) if live and _is_newer(record, live) else job_state_of(record.state)


def reason_of(record: RunRecord, live: "Live | None") -> str:
    """Return why a job is in its state."""
    return str(live["reason"]) if live and _is_newer(record, live) else record.why()


def step_of(record: RunRecord, live: "Live | None") -> int | None:
    """Return the step of a job; the last step in its record is final."""
    is_settled = record.step is not None and not (live and _is_newer(record, live))
    return record.step if is_settled or live is None else live["step"]


def _is_newer(record: RunRecord, live: "Live") -> bool:
    """Tell whether the plane's state of a job is newer than its record."""
    return is_ahead(record, live) if record.is_over() else not JobState(live["state"]).is_final


def is_ahead(record: RunRecord, live: "Live") -> bool:
    """Tell whether a job has moved past its last run, which has ended: it was released, cancelled
    after that, or its next attempt is due."""
    later = live["attempt"] - record.restarts - 1
    is_given_up = live["state"] == "CANCELLED" and record.state is AppState.SUCCEEDED
    return is_released(live) or later > 0 or (later == 0 and is_given_up)


def is_released(live: "Live | None") -> bool:
    """Tell whether a job was paused with `--release`: its ranks have ended."""
    return live is not None and (live["state"], live["reason"]) == ("PAUSED", "released")


def job_shape(
    record: RunRecord, scheduler: str = "local", live: "Live | None" = None
) -> dict[str, Any]:
    """Return a job as JSON; `live` is the job as the plane knows it."""
    state = state_of(record, live)
    return {
        "id": record.id,
        "job_id": record.id,
        "run_id": record.id,
        "name": record.name,
        **_states(state, record.state.name),
        "status": state,
        "reason": reason_of(record, live),
        "warning": live.get("warning", "") if live else "",
        "step": step_of(record, live),
        "world_size": len(with_inner_ranks(record, live)) or (live["world_size"] if live else None),
        "attempt": record.restarts + 1,
        "generation": record.generation,
        "handle": handle_of(record, scheduler),
        "scheduler": scheduler,
        "owner": record.owner,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }


def _states(job: str, app: str) -> dict[str, str]:
    return {"state": job, "job_state": job, "app_state": app}


def with_both_states(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job that only the plane knows, with TorchX's name of its state added."""
    return {**job, **_states(job["state"], app_state_of(job["state"]))}


def as_torchx(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with TorchX's state names, for TorchX's verbs."""
    more = {"status": job["app_state"]} if "status" in job else {}
    return {**job, "state": job["app_state"], **more}


def is_in(job: Mapping[str, str], state: str) -> bool:
    """Tell whether a job is in a state, given by our name or TorchX's."""
    word = _SAME.get(state, state)
    return word == (job["job_state"] if word in JobState.__members__ else job["app_state"])


def engine_job_shape(handle: str, name: str, state: AppState) -> dict[str, Any]:
    """Return a job of another engine, with the fields that every engine has."""
    scheduler, _, app_id = parse_app_handle(handle)
    return {
        "id": app_id,
        "name": name,
        **_states(job_state_of(state), state.name),
        "handle": handle,
        "scheduler": scheduler,
    }


def rank_shape(rank: RankRecord, host: str, live: "Live | None" = None) -> dict[str, Any]:
    """Return a rank as JSON; `live` is the rank as the plane knows it."""
    known = live or {}
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": rank.replica,
        "node": rank.process.host if rank.process else host,
        "pid": rank.process.pid if rank.process else None,
        "state": rank.state.name,
        "step": rank_step(rank, known),
        "device_uuids": known.get("device_uuids", []),
        "generation": rank.generation,
        "start": start_of(rank)[0] or None,
        "cold_because": start_of(rank)[1],
        "exit_code": rank.exit_code,
    }


def start_of(rank: RankRecord) -> tuple[str, str]:
    """Return whether a rank's start was warm or cold, and why; empty before its start."""
    kind, _, why = rank.warmth.partition(": ")
    return kind, why


def cold_starts(record: RunRecord) -> str:
    """Return a line on which ranks started cold and why; empty if all were warm."""
    cold = [rank for rank in record.ranks if start_of(rank)[0] == "cold"]
    if not cold:
        return ""
    reasons = "; ".join(dict.fromkeys(start_of(rank)[1] for rank in cold))
    some = f" of {len(cold)} of {len(record.ranks)} ranks" if len(cold) < len(record.ranks) else ""
    return f"cold start{some}: {reasons}"


def rank_step(rank: RankRecord, known: "Live") -> int | None:
    """Return the step of a rank: from its record if it has ended, else from the plane."""
    return known.get("step") if rank.step is None else rank.step
