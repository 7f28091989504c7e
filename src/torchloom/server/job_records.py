"""Jobs as they are shown: active ones from the weaver, all others from the database."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchloom.server.text import whole
from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState
from torchloom.weaver import views
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import CommandAck, CommandRow, GuardRow, JobRow
from torchloom.weaver.views import EventPosition, events_since

_WORLD_SIZE = "world_size"  # among the facts of a job


def commands(store: PlaneReader, job: str, after: int, limit: int) -> list[dict[str, Any]]:
    """Return a job's commands after a number, in order, with what each rank did."""
    rows = [row for row in store.state.find(CommandRow, job=job) if row.number > after]
    return _shaped(store, sorted(rows, key=lambda row: row.number)[:limit])


def newest_commands(store: PlaneReader, job: str, limit: int) -> list[dict[str, Any]]:
    """Return the last commands of a job, in order, with what each rank did."""
    rows = sorted(store.state.find(CommandRow, job=job), key=lambda row: row.number)
    return _shaped(store, rows[-limit:])


def command(store: PlaneReader, job: str, name: str) -> dict[str, Any] | None:
    """Return one command of a job."""
    row = store.state.one(CommandRow, id=name, job=job)
    return _shaped(store, [row])[0] if row else None


def events(
    store: PlaneReader, job: str, after: EventPosition | None, limit: int
) -> tuple[Any, EventPosition]:
    """Return the events of a job and of its ranks by time, and the position of the last."""
    items, upto = events_since(store, job, after, limit)
    return whole(sorted(items, key=lambda item: item["time"] or "")), upto


def authored(store: PlaneReader, job: str, after: int, limit: int) -> list[dict[str, Any]]:
    """Return what users did to a job after a sequence number, in order."""
    found = store.state.authored(job, after, limit)
    shown: list[dict[str, Any]] = whole(list(map(views.event_shape, found)))
    return shown


def _shaped(store: PlaneReader, rows: list[CommandRow]) -> list[dict[str, Any]]:
    names = [row.id for row in rows]
    acks = store.state.find(CommandAck, command=names) if names else []
    guards = (
        {row.command: row for row in store.state.find(GuardRow, command=names)} if names else {}
    )
    shown: list[dict[str, Any]] = whole(
        [views.command_shape(row, _of(row, acks), guards.get(row.id)) for row in rows]
    )
    return shown


def _of(row: CommandRow, acks: list[CommandAck]) -> list[CommandAck]:
    return [ack for ack in acks if ack.command == row.id]


def is_same(asked: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether a stored command is the one that is requested again with its key."""
    payload, verb = known["payload"], asked["verb"]
    if verb == "undo":
        return known["kind"] == "knob" and bool(payload.get("undo"))
    if verb != "set":
        return known["kind"] in (verb, f"{verb}_at") and bool(known["at"] == asked.get("at"))
    values = payload.get("values") or {payload.get("name"): payload.get("value")}
    is_set = known["kind"] == "knob" and values == asked["values"]
    return bool(is_set and known["at"] == asked.get("at"))


class Asker(Protocol):
    """Something that sends requests to the weaver."""

    async def ask(self, name: str, /, **facts: Any) -> Any: ...


def job_shape(row: JobRow) -> dict[str, Any]:
    """Return a job as the database has it."""
    return views.job_shape(row, row.step, row.facts.get(_WORLD_SIZE))


async def living_jobs(weaver: Asker, rows: Sequence[JobRow]) -> list[dict[str, Any]]:
    """Return jobs in their present state; only the weaver has the progress of running ones."""
    active = [row.id for row in rows if not JobState(row.state).is_final]
    known: dict[str, dict[str, Any]] = {}
    if active:
        try:
            found = await weaver.ask("jobs", active=True, ids=active)
            known = {one["id"]: one for one in found}
        except WeaverAway:
            pass  # the database has the rest
    return [known.get(row.id) or job_shape(row) for row in rows]
