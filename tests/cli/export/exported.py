"""Runs that a plane remembers, written straight into its database, and what a report holds."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import NumberedBatch, PlaneStore, open_store
from torchloom.weaver.store.rows import JobRow, StoredRow

from ...harness.fresh_databases import fresh

PAGE = '<html><script type="application/json" id="report">__LOOM_REPORT__</script></html>'
HOSTILE = "</script><script>window.pwned=1</script><!--<img src=x onerror=window.pwned=1>&amp;"
_DATA = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)


def store_of(home: Path) -> PlaneStore:
    """Return the database that the plane of a state folder would have."""
    return open_store(fresh(home / "plane"))


def remembered(store: PlaneStore, job: str, *rows: StoredRow, **facts: Any) -> None:
    """Have the plane remember a run that is over."""
    times = {"created_at": 1000.0, "started_at": 1001.0, "ended_at": 1061.0}
    known = {"name": job, "owner": "ada", "run_id": job, "state": "COMPLETED", **times}
    store.state.put(JobRow(job, **{**known, **facts}), *rows)


def log(
    store: PlaneStore,
    job: str,
    names: Sequence[str],
    rows: Iterable[tuple[float, ...]],
    rank: int = 0,
    generation: int = 1,
) -> None:
    """Store what a rank has logged: of each row the step, the time and a value for each name."""
    head = Head(VERSION, job, generation, rank, f"life {rank} {names[0]} {generation}")
    ingest = store.ingest()
    ingest.write([NumberedBatch(head, 1, [Metrics(head, tuple(names), tuple(rows))])])
    ingest.close()


def within(text: str) -> Mapping[str, Any]:
    """Return the data inside a report, by its place in the file alone."""
    (data,) = _DATA.findall(text)
    found: Mapping[str, Any] = json.loads(data)
    return found
