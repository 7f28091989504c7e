"""What happened and what was told, of one job or of all, from a place on."""

from typing import Any, Protocol

from torchloom.weaver import shapes
from torchloom.weaver.store import StateStore, rows
from torchloom.weaver.store.records import RecordStore
from torchloom.weaver.store.snapshot import RecordsLost

Place = tuple[int, int]  # how far the weaver's events and those of ranks are known


class Told(Protocol):
    """Whatever has both databases."""

    @property
    def state(self) -> StateStore: ...

    @property
    def records(self) -> RecordStore: ...


def events_since(
    store: Told, job: str | None, after: Place | None, limit: int
) -> tuple[list[dict[str, Any]], Place]:
    """Return what is new since a place, or the newest of all; and how far that goes."""
    if after is None:
        happened = store.state.last_happened(job, limit)
    else:
        happened = store.state.happened(job, after[0], limit)
    reported = _reported(store, job, after, limit)
    first = after or (0, 0)
    upto = (happened[-1].seq if happened else first[0], reported[-1].id if reported else first[1])
    return [*map(shapes.happening_shape, happened), *map(shapes.told_shape, reported)], upto


def _reported(store: Told, job: str | None, after: Place | None, limit: int) -> list[rows.Told]:
    """Return what ranks reported; nothing where their records cannot be read."""
    try:
        if after is None:
            return store.records.last_events(job, limit)
        return store.records.events(job, after[1], limit)
    except RecordsLost:
        return []
