"""Ask the plane that this user has chosen: another one by HTTP, else the one of this host.

What is asked has the same names and the same answers either way; who asks is then the user of the
other plane, named by its token, and not the user of this host.
"""

import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.errors import Ambiguous, UserError

if TYPE_CHECKING:
    from torchloom.client.http import Client

_STEERING = ("set", "undo", "pause", "resume", "resize", "stop", "checkpoint")
_ACTIVE = ("RUNNING", "PAUSED", "RECOVERING", "QUEUED")
_LONGEST_WAIT = 60.0  # seconds for which another plane holds an answer back
_POLL_TIMEOUT = 5.0  # seconds for an answer to a caller that polls
_EVENTS, _POINTS, _MOST_BUCKETS = 100, 1000, 20_000  # by default, and at most
_COLUMNS = {
    "first_steps": "step_first",
    "steps": "step_last",
    "times": "time",
}
_PASSED = (
    *("values", "hold", "guard", "span", "command", "at", "reason"),
    *("workers", "from_step", "until", "from_scratch", "distributed", "unpause", "release"),
)
Facts = Mapping[str, Any]


class NotElsewhere(UserError):
    """Only the plane of this host answers this."""

    code = "not_elsewhere"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not available from a plane on another host; "
            "ask on its host, or `loom login --forget` to use this one's"
        )


def is_elsewhere() -> bool:
    """Tell whether another plane than that of this host was chosen."""
    return (settings.loom_home() / "login.json").exists()


def client(**words: float) -> "Client":
    """Return the plane elsewhere that was chosen."""
    from torchloom.client import login

    found = login.current()
    if found is None:
        raise UserError("not logged in to a plane on another host; `loom login URL` logs in")
    return found.client(**words)


def ask(name: str, timeout: float | None = 30.0, **facts: Any) -> Any:
    """Ask the chosen plane, and return its answer."""
    if not is_elsewhere():
        from torchloom.client import plane

        return plane.ask(name, timeout, **facts)
    with client() as other:
        return _asked(other, name, facts)


def settle(name: str, on_wait: Callable[[str], None], **facts: Any) -> Any:
    """Have the chosen plane change something once; return its answer, however late.

    A plane of this host that ends meanwhile is asked again, under the same id.
    """
    if is_elsewhere():
        return ask(name, None, **facts)
    import uuid

    from torchloom.client import plane

    facts = {"id": uuid.uuid4().hex[:16], **facts}
    return plane.settle(name, on_wait, None, None, **facts)


def asker() -> Callable[..., Any]:
    """Return `ask` for a caller that polls: connections to a plane elsewhere stay open."""
    if not is_elsewhere():
        from torchloom.client import plane

        return plane.ask
    steering, looking = client(), client(timeout=_POLL_TIMEOUT)

    def asked(name: str, timeout: float | None = None, **facts: Any) -> Any:
        return _asked(steering if name in _STEERING else looking, name, facts)

    return asked


def meant(other: "Client", job: str) -> str:
    """Return the job that is meant; where none is named, the only one that is not over."""
    if job:
        return job
    active = _active(other)
    if len(active) > 1:
        raise Ambiguous("job", "", active)
    if not active:
        raise UserError("no job is active there; name one, `loom ls` lists them")
    return active[0]


def _active(other: "Client") -> list[str]:
    return [one["id"] for one in other.jobs(state=list(_ACTIVE))]


def _asked(other: "Client", name: str, facts: Facts) -> Any:
    if name in _STEERING:
        return _steered(other, name, facts)
    if name not in _ASKS:
        raise NotElsewhere(f"`{name}`")
    return _ASKS[name](other, facts)


def _steered(other: "Client", verb: str, facts: Facts) -> dict[str, Any]:
    if facts.get("undo"):
        raise NotElsewhere("`set --replay` of a log that undoes changes")
    passed = {name: facts[name] for name in _PASSED if facts.get(name) not in (None, "")}
    wait = facts.get("wait")
    if wait is not None:
        passed["wait"] = min(float(wait), _LONGEST_WAIT)
    return other.command(meant(other, facts.get("job") or ""), verb, **passed)


def _jobs(other: "Client", facts: Facts) -> list[dict[str, Any]]:
    return list(islice(other.jobs(), facts.get("limit")))


def _events(other: "Client", facts: Facts) -> dict[str, Any]:
    """Return the last events of a job; without a job, of those that are not over."""
    job, limit = facts.get("job"), facts.get("limit") or _EVENTS
    jobs = [job] if job else _active(other)
    found = [event for name in jobs for event in other.newest(name, limit)]
    return {"items": sorted(found, key=lambda one: one["time"] or "")[-limit:]}


def _metrics(other: "Client", facts: Facts) -> dict[str, Any]:
    """Return points as the door has them; of a longer curve the last one of each bucket."""
    job = meant(other, facts.get("job") or "")
    wanted = {"name": facts.get("metric") or None, "rank": facts.get("rank")}
    buckets = min(facts.get("limit") or _POINTS, _MOST_BUCKETS)
    found = other.metrics(job, first=facts.get("after"), buckets=buckets, **wanted)
    return {**found, "series": list(map(_as_points, found["series"]))}


def _as_points(one: Facts) -> dict[str, Any]:
    columns = zip(one["steps"], one["times"], map(_number, one["last"]), strict=True)
    return {
        **{name: one[name] for name in ("name", "role", "rank")},
        "points": list(map(list, columns)),
    }


def _number(value: float | None) -> float:
    """Return a value; what JSON cannot express is NaN."""
    return math.nan if value is None else value


def _devices(other: "Client", facts: Facts) -> dict[str, Any]:
    found = other.devices()
    return {"version": found["version"], "devices": found["items"]}


def _device_event(other: "Client", facts: Facts) -> dict[str, Any]:
    more = {name: facts[name] for name in ("reason", "new") if facts.get(name)}
    return other.device_event(facts["device"], facts["state"], **more)


def _compare(other: "Client", facts: Facts) -> dict[str, Any]:
    """Return runs side by side, each named as a job may be."""
    return other.compare([other.job(run)["run_id"] for run in facts["runs"]])


def _curves(other: "Client", facts: Facts) -> dict[str, Any]:
    """Return curves as the door has them: of the lowest rank that has one, or of all."""
    job, names = meant(other, facts.get("job") or ""), facts.get("names")
    more = {"replaced": True} if facts.get("replaced") else {}
    found = other.metrics(job, name=names or None, buckets=facts.get("buckets") or 1, **more)
    lowest: dict[str, int] = {}
    for one in found["series"]:
        lowest[one["name"]] = min(one["rank"], lowest.get(one["name"], one["rank"]))
    wanted = [
        one
        for one in (found["series"] if names else ())
        if facts.get("all_ranks") or one["rank"] == lowest[one["name"]]
    ]
    return {"job": found["job"], "names": found["names"], "curves": list(map(_curve, wanted))}


def _curve(one: Facts) -> dict[str, Any]:
    """Return a curve with the names that the plane of this host has."""
    older = [
        {"generation": its["generation"], **_buckets(its)} for its in one.get("replaced") or ()
    ]
    return {"name": one["name"], "rank": one["rank"], **_buckets(one), "replaced": older}


def _buckets(one: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {to: one[name] for name, to in _COLUMNS.items()}
    return {**found, **{name: list(map(_number, one[name])) for name in ("min", "max", "last")}}


def _of_job(read: Callable[["Client", str], Any]) -> Callable[["Client", Facts], Any]:
    return lambda other, facts: read(other, meant(other, facts.get("job") or ""))


_ASKS: Mapping[str, Callable[["Client", Facts], Any]] = {
    "status": lambda other, _: other.plane(),
    "jobs": _jobs,
    "job": _of_job(lambda other, job: other.job(job)),
    "ranks": _of_job(lambda other, job: other.ranks(job)),
    "metrics": _metrics,
    "events": _events,
    "knobs": _of_job(lambda other, job: other.knobs(job)),
    "audit": _of_job(lambda other, job: list(other.commands(job))),
    "stacks": _of_job(lambda other, job: other.stacks(job)),
    "queue": lambda other, _: other.queue(),
    "devices": _devices,
    "device_event": _device_event,
    "compare": _compare,
    "curves": _curves,
}
