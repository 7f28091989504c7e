"""What happened and what was told, of one job or of all, from a place on."""

from typing import Any, Protocol

from torchloom.weaver import shapes
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.records import RecordStore

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
        told = store.records.last_events(job, limit)
    else:
        happened = store.state.happened(job, after[0], limit)
        told = store.records.events(job, after[1], limit)
    first = after or (0, 0)
    upto = (happened[-1].seq if happened else first[0], told[-1].id if told else first[1])
    return [*map(shapes.happening_shape, happened), *map(shapes.told_shape, told)], upto
