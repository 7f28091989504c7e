"""How fast a chart is read: ten series of a million points each, at a thousand buckets.

Beside it MLflow's own server code on SQLite, which is asked for what its pages draw of a metric: as
many points of each series, sampled.
"""

import random
import time
from collections.abc import Callable

from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, once
from benchmarks.plane_peer import mlflow
from benchmarks.plane_postgres import running_postgres

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, RecordStore, open_store
from torchloom.weaver.store.series.curves import curves

SERIES, POINTS, BUCKETS = 10, 1_000_000, 1000
AT_ONCE = 10_000  # steps of a batch
JOB = "chart"


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of charts."""
    folder = once(lambda: filled(DatabasePlace(lab.scratch / "chart")))
    postgres = once(
        lambda: filled(DatabasePlace(None, lab.at_end.enter_context(running_postgres())))
    )
    peer = mlflow(
        lab,
        "GET metrics/get-history-bulk-interval, its server's code",
        1,
        "chart",
        str(POINTS),
        most=10,
    )
    unit = "ms, 10 series of 1,000,000 points, 1,000 buckets"
    return [
        Figure("chart", unit, drawn("SQLite", folder), peer),
        Figure("chart-postgres", unit, drawn("Postgres", postgres), peer),
        Figure("chart-zoomed", "ms, a fifth of them", drawn("SQLite", folder, POINTS // 5)),
    ]


def filled(place: DatabasePlace) -> RecordStore:
    """Store the curves as they would come."""
    store, draw = open_store(place), random.Random(5)
    ingest = store.ingest()
    head = Head(VERSION, JOB, 0, 0, "life")
    names = tuple(f"m{number}" for number in range(SERIES))
    for number, first in enumerate(range(0, POINTS, AT_ONCE), 1):
        rows = tuple(
            (step, 1.7e9 + step / 10, *(draw.random() for _ in names))
            for step in range(first, first + AT_ONCE)
        )
        ingest.write([NumberedBatch(head, number, [Metrics(head, names, rows)])])
    ingest.close()
    return store.records


def drawn(command: str, store: Callable[[], RecordStore], span: int = POINTS) -> Subject:
    """Return what a chart of the middle of the curves takes."""
    first = (POINTS - span) // 2

    def sample() -> float:
        records = store()
        began = time.perf_counter()
        found = curves(records, JOB, first=first, last=first + span - 1, buckets=BUCKETS)
        took = time.perf_counter() - began
        if {sum(curve.count) for curve in found} != {span} or len(found) != SERIES:
            raise CannotMeasure("the chart does not have all points")
        return took * 1e3

    return Subject(f"curves(records, job, buckets=1000), {command}", sample)
