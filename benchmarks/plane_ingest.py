"""How fast metrics are stored: into SQLite, into Postgres, and all the way over NATS.

Ranks log five numbers a step; a batch has the steps of 100 to 200 ms of one rank. Into the stores
batches go as the weaver's writer hands them over when it is behind; merging them into chunks is
part of it. Over NATS the plane is a user's (`loom up`), agents connect with keys of their own and
keep to their window; a sample ends when the weaver has said that everything is stored, and what is
there is counted in the database. Beside it: MLflow's own store on the same kind of database, 1,000
points a call, the most that it takes, with no server between, and its server where ours is all the
way, too. MLflow is slower on Postgres than on SQLite: ours there beside that is a row as well.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, once
from benchmarks.plane_peer import mlflow
from benchmarks.plane_postgres import running_postgres
from benchmarks.plane_told import NAMES, Ranks

from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.store.series.curves import curves
from torchloom.weaver.store.series.writer import TOGETHER

FEW, MANY = (64, 10), (1000, 2)  # ranks, and steps of a batch
POINTS = 400_000  # of a sample, or somewhat more
LIMIT = 300.0


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of ingest."""
    unit = "µs a point"
    peer = mlflow(lab, "client.log_batch(run, 1,000 metrics) on SQLite", 2, "log")
    server = mlflow(lab, "client.log_batch(run, 1,000 metrics) to its server", 2, "served")
    local = DatabasePlace(lab.scratch / "ingest")
    postgres = once(lambda: DatabasePlace(None, lab.at_end.enter_context(running_postgres())))
    theirs = once(lambda: lab.at_end.enter_context(running_postgres()))
    like = mlflow(lab, "client.log_batch(run, 1,000 metrics) on Postgres", 2, "postgres", theirs)
    ours = storing("Postgres, 64 ranks", postgres, *FEW)
    sqlite = storing("SQLite, 64 ranks, 10 steps a batch", lambda: local, *FEW)
    small = storing("SQLite, 1,000 ranks, 2 steps a batch", lambda: local, *MANY)
    return [
        Figure("ingest-sqlite", unit, sqlite, peer),
        Figure("ingest-sqlite-small", unit, small),
        Figure("ingest-postgres", unit, ours, like),
        Figure("ingest-postgres-mlflow-sqlite", unit, ours, peer),
        Figure("ingest-postgres-small", unit, storing("Postgres, 1,000 ranks", postgres, *MANY)),
        Figure("ingest-nats", unit, over_nats(lab), server),
    ]


def storing(command: str, place: Callable[[], DatabasePlace], count: int, steps: int) -> Subject:
    """Return what storing a point takes, in a database that grows from sample to sample."""
    ranks = Ranks(count, steps, f"job-{count}")
    ready = once(lambda: open_store(place()).ingest())

    def sample() -> float:
        ingest = ready()
        batches = [b for _ in range(-(-POINTS // ranks.points)) for b in ranks.round()]
        groups = [batches[at : at + TOGETHER] for at in range(0, len(batches), TOGETHER)]
        began = time.perf_counter()
        for group in groups:
            ingest.write(group)
        return (time.perf_counter() - began) * 1e6 / (len(batches) * steps * len(NAMES))

    return Subject(command, sample)


def over_nats(lab: Lab) -> Subject:
    """Return what a point takes from agents' hands into the database."""
    from benchmarks import planes

    running = once(lambda: lab.at_end.enter_context(planes.up(lab)))
    rounds: list[int] = []

    def sample() -> float:
        rounds.append(len(rounds))
        job = f"nats-{len(rounds)}"
        host, port = running().server
        home = Path(running().env["LOOM_HOME"]) / "plane"
        words = [sys.executable, "-m", "benchmarks.plane_senders", host, str(port)]
        done = subprocess.run(
            [*words, str(home / "keys"), job, str(POINTS)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=Path(__file__).parents[1],
            check=False,
        )
        if done.returncode:
            raise CannotMeasure(f"the senders failed: {done.stderr[-300:]}")
        told = json.loads(done.stdout)
        must_be_there(home, job, told["points"])
        return float(told["seconds"]) * 1e6 / int(told["points"])

    return Subject("agents over NATS to the weaver, SQLite", sample)


def must_be_there(folder: Path, job: str, points: int) -> None:
    """Count a job's points in the database."""
    reading = open_reading(DatabasePlace(folder))
    found = sum(sum(curve.count) for curve in curves(reading.records, job, buckets=1))
    reading.close()
    if found != points:
        raise CannotMeasure(f"{points} points were told, {found} are stored")
