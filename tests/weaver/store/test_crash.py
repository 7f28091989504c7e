"""A writer killed at any instant: what it acknowledged is there, each record once, nothing torn."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from torchloom.weaver.store import DatabasePlace, open_store

from ...harness.home import TIMEOUT
from ...harness.metric_rows import shown

WRITER = """
import sys, pathlib
from torchloom.messages.plane import VERSION, Event, Head, Metrics
from torchloom.weaver.store import DatabasePlace as Place, NumberedBatch as Numbered
from torchloom.weaver.store import RecordWriter, open_store
from torchloom.weaver.store.series.ingest import LogLimits as Limits
from torchloom.weaver.store.rows import Fact, JobRow as Job
folder, url = sys.argv[1:]
store = open_store(Place(pathlib.Path(folder) if folder else None, url))
head = Head(VERSION, "j", 0, 0, "i")
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()
ingest = store.ingest(Limits(400))  # merged every few transactions: a kill meets that, too
writer = RecordWriter(ingest, lambda batch, upto: say("records", upto))
writer.start()
have = store.records.received()
first = have[0].upto + 1 if have else 1
known = store.state.one(Fact, name="last")
last = known.value if known else 0
say("ready")
while True:
    for first in range(first, first + 50, 5):
        numbers = range(first, first + 5)
        records = [Event(head, "x", n, 0.0) for n in numbers]
        records[2] = Metrics(head, ("loss",), ((first, 0.0, float(first)),))
        writer.submit(Numbered(head, first, records))
    first += 5
    last += 1
    with store.state.together():
        store.state.put(Job(f"j{last}"))
        store.state.put(Fact("last", last))
    say("state", last)
"""


def crash(place: DatabasePlace, delay: float) -> Counter[str]:
    """Let a writer work for a while, kill it, return the highest it acknowledged of each half."""
    words = [sys.executable, "-c", WRITER, str(place.folder or ""), place.url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)  # the instant is the point
    process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().split("\n")[:-1]  # a last line may be half
    process.wait(TIMEOUT)
    process.stdout.close()
    said: Counter[str] = Counter()
    for kind, number in (line.split() for line in lines):
        said[kind] = max(said[kind], int(number))
    return said


@pytest.mark.process
def test_what_a_killed_writer_acknowledged_is_in_the_files_exactly_once(tmp_path: Path) -> None:
    """Read by a plain sqlite3 of this process, which knows nothing of our code."""
    place, said, draw = DatabasePlace(tmp_path), Counter[str](), random.Random(7)

    for _ in range(10):
        said |= crash(place, draw.uniform(0.0, 0.25))

        records, state = (sqlite3.connect(tmp_path / f"{n}.db") for n in ("records", "state"))
        events = [row[0] for row in records.execute("SELECT number FROM events ORDER BY id")]
        points = sorted(place[-1] for place in shown(records))
        upto = records.execute("SELECT upto FROM received").fetchall()
        last = state.execute("SELECT value FROM facts").fetchall()
        jobs = state.execute("SELECT count(*) FROM jobs WHERE id = 'j' || ?", last[0]).fetchone()
        for database in (records, state):
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            database.close()
        stored = upto[0][0] if upto else 0
        assert stored >= said["records"]
        assert events == [n for n in range(1, stored + 1) if n % 5 != 3]
        assert points == list(range(1, stored + 1, 5))
        assert int(last[0][0]) >= said["state"]
        assert jobs == (1,)
    assert said["records"] > 0


@pytest.mark.process
def test_the_same_on_postgres(postgres: str) -> None:
    import psycopg

    from ...harness.postgres_server import new_database

    url = new_database(postgres, "crashes")
    place, said, draw = DatabasePlace(None, url), Counter[str](), random.Random(8)

    for _ in range(4):
        said |= crash(place, draw.uniform(0.05, 0.3))

        with psycopg.connect(url) as connection:
            query = "SELECT number FROM records.events ORDER BY id"
            events = [row[0] for row in connection.execute(query)]
            upto = connection.execute("SELECT upto FROM records.received").fetchall()
            points = sorted(place[-1] for place in shown(connection, "records."))
        stored = upto[0][0] if upto else 0
        assert stored >= said["records"]
        assert events == [n for n in range(1, stored + 1) if n % 5 != 3]
        assert points == list(range(1, stored + 1, 5))
    assert said["records"] > 0


@pytest.mark.process
def test_two_writers_of_one_database_store_each_record_once(tmp_path: Path) -> None:
    """An old weaver may still hold batches while the next one has begun."""
    from torchloom.messages.plane import VERSION, Event, Head
    from torchloom.weaver.store import NumberedBatch

    head = Head(VERSION, "j", 0, 0, "i")
    one, two = open_store(DatabasePlace(tmp_path)), open_store(DatabasePlace(tmp_path))
    ingests = [one.ingest(), two.ingest()]

    for first in range(1, 40, 2):
        batch = NumberedBatch(head, first, [Event(head, "x", n, 0.0) for n in (first, first + 1)])
        assert [ingest.write([batch]) for ingest in ingests] == [[first + 1], [first + 1]]

    assert [told.number for told in one.records.events()] == list(range(1, 41))
    for ingest in ingests:
        ingest.close()
    one.close()
    two.close()
