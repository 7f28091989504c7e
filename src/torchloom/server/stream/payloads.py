"""The payloads of the stream, before a reader's cursor is added."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from torchloom.server.logs.lines import OutputLine
from torchloom.server.stream.cursors import logs_text
from torchloom.weaver import views
from torchloom.weaver.store.rows import EventRow, JobRow, RankEventRow
from torchloom.weaver.store.series.curves import Curve, NewsSegment
from torchloom.weaver.store.series.points import PointBuckets

TYPES = ("metric", "resource", "log", "state", "event")
OWN = ("type", "step", "seq", "time", "rank", "role", "generation", "job", "cursor")
_BEGINNINGS = {"job_started": "RUNNING", "submitted": "QUEUED"}  # states that a job is made in


def columns(curve: Curve) -> dict[str, Any]:
    """Return one series, an entry a bucket."""
    older = ({"generation": one.generation, **_buckets(one.buckets)} for one in curve.replaced)
    return {
        "name": curve.name,
        "rank": curve.rank,
        "role": curve.role,
        **_buckets(curve),
        "has_replaced": curve.has_replaced,
        "replaced": list(older),
    }


def _buckets(its: Curve | PointBuckets) -> dict[str, Any]:
    return {
        "steps": its.step_last,
        "first_steps": its.step_first,
        "times": its.time,
        "min": its.min,
        "max": its.max,
        "last": its.last,
        "counts": its.count,
        "nans": its.nans,
    }


@dataclass(frozen=True, slots=True)
class StreamPayload:
    """A message of one job; `move` has the reader's position after it, by the names of a cursor."""

    job: str
    kind: str
    rank: int
    time: float
    body: Mapping[str, Any]
    move: Mapping[str, Any]


def of_event(row: EventRow) -> StreamPayload:
    """Return a transition as `state`, any other event of the weaver as `event`."""
    after = row.facts.get("after") if row.kind == "job_state" else _BEGINNINGS.get(row.kind)
    move = {"happened": row.seq}
    if after is not None:
        reason = row.reason or (row.kind if row.kind in _BEGINNINGS else "")
        body = _state(str(after), reason, row.seq, row.time, row.job)
        return StreamPayload(row.job, "state", -1, row.time, body, move)
    shape = views.event_shape(row)
    body = {"type": "event", **shape, "rank": _rank(row.rank)}
    return StreamPayload(row.job, "event", row.rank, row.time, body, move)


def of_job(job: JobRow, seq: int, now: float) -> StreamPayload:
    """Return the present state of a job for a new client; it moves no cursor."""
    body = _state(job.state, job.reason, seq, now, job.id)
    return StreamPayload(job.id, "state", -1, now, body, {})


def of_rank_event(row: RankEventRow) -> StreamPayload:
    """Return an event that a rank or an agent reported."""
    shape = views.rank_event_shape(row)
    body = {"type": "event", "seq": row.id, **shape, "rank": _rank(row.rank)}
    return StreamPayload(row.job, "event", row.rank, row.time, body, {"reported": row.id})


def of_line(line: OutputLine, job: str) -> StreamPayload:
    """Return a line of a log."""
    body = {"type": "log", "seq": line.start, **line.shape(), "job": job}
    return StreamPayload(job, "log", line.output.rank, line.time, body, {line.output.key: line.end})


def of_segments(segments: Iterable[NewsSegment]) -> Iterator[StreamPayload]:
    """Yield metrics as they were stored, one message a rank and step with all that it logged.

    Within a transaction of one job they have one order at every read; so `row` counts them.
    """
    for position, commit in groupby(segments, key=lambda segment: segment.position):
        jobs: dict[str, list[NewsSegment]] = {}
        for segment in commit:
            jobs.setdefault(segment.job, []).append(segment)
        for job, its in jobs.items():
            yield from _of_commit(job, position, its)


def _of_commit(job: str, position: int, segments: Iterable[NewsSegment]) -> Iterator[StreamPayload]:
    rows: dict[tuple[int, int, str, int], dict[str, float]] = {}
    times: dict[tuple[int, int, str, int], float] = {}
    for segment in segments:
        rest = (segment.rank, segment.role, segment.generation)
        for step, time, value in zip(segment.steps, segment.times, segment.values, strict=True):
            rows.setdefault((step, *rest), {})[segment.name] = value
            times[step, *rest] = time
    last = len(rows)
    for number, key in enumerate(sorted(rows), 1):
        step, rank, role, generation = key
        body = {
            "type": "metric",
            "step": step,
            **{_named(name): value for name, value in rows[key].items()},
            "seq": position,
            "time": views.when(times[key]),
            "rank": rank,
            "role": role,
            "generation": generation,
            "job": job,
        }
        done = {"arrived": position, "row": 0}
        move = done if number == last else {"arrived": position - 1, "row": number}
        yield StreamPayload(job, "metric", rank, times[key], body, move)


def _state(status: str, reason: str, seq: int, time: float, job: str) -> dict[str, Any]:
    return {
        "type": "state",
        "status": status,
        "reason": reason,
        "seq": seq,
        "time": views.when(time),
        "rank": None,
        "job": job,
    }


def _named(name: str) -> str:
    """Return the key of a metric; one named like a key of the message gets a prefix."""
    return f"metric.{name}" if name in OWN else name


def _rank(rank: int) -> int | None:
    return None if rank < 0 else rank


class ReaderPosition:
    """The position of one reader of one job; each payload moves it."""

    def __init__(
        self, happened: int = 0, reported: int = 0, arrived: int = 0, row: int = 0
    ) -> None:
        self.happened = happened
        self.reported = reported
        self.arrived = arrived
        self.row = row
        self.logs: dict[str, int] | None = None
        self._text: str | None = None  # of the logs, while they stay where they are

    def copy(self) -> "ReaderPosition":
        """Return a copy at the same position."""
        other = ReaderPosition(self.happened, self.reported, self.arrived, self.row)
        other.logs = None if self.logs is None else dict(self.logs)
        return other

    def move(self, draft: StreamPayload) -> None:
        """Move behind a payload."""
        if draft.kind == "log":
            self.logs, self._text = self.logs or {}, None
            self.logs.update(draft.move)
        else:
            for name, value in draft.move.items():
                setattr(self, name, value)

    def reach(self, other: "ReaderPosition") -> None:
        """Move to the position of another in the databases."""
        self.happened, self.reported = other.happened, other.reported
        self.arrived, self.row = other.arrived, other.row

    def follow(self, logs: dict[str, int] | None) -> None:
        """Set the positions in the logs."""
        self.logs, self._text = logs, None

    def is_behind(self, draft: StreamPayload) -> bool:
        """Return whether a payload lies behind this position."""
        if draft.kind == "log":
            return any((self.logs or {}).get(key, 0) < end for key, end in draft.move.items())
        if "arrived" in draft.move:
            there = (draft.move["arrived"], draft.move["row"])
            return (self.arrived, self.row) < there
        return any(getattr(self, name) < value for name, value in draft.move.items())

    def cursor(self) -> str:
        """Return this position as the text of a cursor."""
        if self._text is None:  # once a line; an output that is not begun needs no place
            begun = self.logs and {key: end for key, end in self.logs.items() if end}
            self._text = logs_text(begun)
        row = f"-{self.row}" if self.row else ""
        return f"{self.happened}.{self.reported}.{self.arrived}{row}{self._text}"


def encoded(draft: StreamPayload, cursor: str) -> bytes:
    """Return a message as it is sent; what JSON has no number for (NaN, infinity) is null."""
    return msgspec.json.encode({**draft.body, "cursor": cursor})
