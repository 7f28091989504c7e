"""Readers of what a plane remembers see what its weaver stores, and can change nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.weaver.store import DatabasePlace, PlaneStore, StateLost
from torchloom.weaver.store import reader as reading_module
from torchloom.weaver.store.reader import JobFilter, PlaneReader, open_reading
from torchloom.weaver.store.rows import EventRow, JobRow, QuotaRow, SubmissionRow
from torchloom.weaver.store.schema import HEADS


@pytest.fixture
def reading(store: PlaneStore) -> Iterator[PlaneReader]:
    found = open_reading(store.place)
    yield found
    found.close()


def job(number: int, **more: object) -> JobRow:
    facts = {"id": f"job-{number:04}", "created_at": float(number // 3), **more}
    return JobRow(**facts)  # type: ignore[arg-type]


def ids(jobs: list[JobRow]) -> list[str]:
    return [each.id for each in jobs]


def test_a_reader_sees_what_is_stored_at_once(store: PlaneStore, reading: PlaneReader) -> None:
    assert reading.state.page(JobFilter(), None, 10) == []

    store.state.put(job(1))

    assert reading.state.page(JobFilter(), None, 10) == [job(1)]
    reading.check()
    assert reading.state.version() == HEADS["state"]


def test_a_reader_can_write_nothing(store: PlaneStore, reading: PlaneReader) -> None:
    with pytest.raises(StateLost):
        reading.state.put(QuotaRow("eve", 99))

    assert store.state.find(QuotaRow) == []


def test_pages_have_every_job_once_though_many_were_made_at_one_moment(
    store: PlaneStore, reading: PlaneReader
) -> None:
    store.state.put(*(job(number) for number in range(500)))

    pages, before = [], None
    while page := reading.state.page(JobFilter(), before, 70):
        pages.append(page)
        before = (page[-1].created_at, page[-1].id)

    assert [len(page) for page in pages] == [70] * 7 + [10]
    assert ids([each for page in pages for each in page]) == [
        f"job-{n:04}" for n in range(499, -1, -1)
    ]


def test_a_page_far_down_is_found_by_the_index_and_not_by_reading_all_before_it(
    store: PlaneStore, reading: PlaneReader
) -> None:
    store.state.put(*(job(number) for number in range(500)))
    query = reading_module._jobs(JobFilter(), (50.0, "job-0151")).limit(10)

    with store.state._engine.connect() as connection:
        literal = query.compile(connection, compile_kwargs={"literal_binds": True})
        is_sqlite = connection.dialect.name == "sqlite"
        if not is_sqlite:  # where there is little to read Postgres would rather read all of it
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        plan = " ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {literal}"))

    wanted = "SEARCH jobs USING INDEX jobs_by_time ((created_at,id)<(?,?))"
    assert (wanted if is_sqlite else "Index Scan Backward using jobs_by_time") in plan
    assert ("TEMP B-TREE" if is_sqlite else "Sort") not in plan


def test_labels_are_those_of_what_was_submitted(store: PlaneStore, reading: PlaneReader) -> None:
    for number in range(300):
        spec = {"project": "even" if number % 2 == 0 else "odd", "tags": [f"t{number % 5}"]}
        store.state.put(job(number), SubmissionRow(f"job-{number:04}", number, spec=spec))
    store.state.put(job(400))

    even = reading.state.page(JobFilter(project="even"), None, 1000)
    both = reading.state.page(JobFilter(project="even", tag="t3"), None, 2)

    assert ids(even) == [f"job-{n:04}" for n in range(298, -1, -2)]
    assert ids(both) == ["job-0298", "job-0288"]


def test_conditions_are_all_to_hold(store: PlaneStore, reading: PlaneReader) -> None:
    store.state.put(job(1, state="FAILED", owner="ada", name="a"), job(9, owner="ada", name="b"))

    def found(**words: object) -> list[str]:
        return ids(reading.state.page(JobFilter(**words), None, 10))  # type: ignore[arg-type]

    assert found(owner="ada") == ["job-0009", "job-0001"]
    assert found(owner="ada", states=("FAILED", "QUEUED")) == ["job-0001"]
    assert found(name="b", since=3.0) == ["job-0009"]
    assert found(since=0.0, until=3.0) == ["job-0001"]
    assert found(owner="bob") == []


def test_only_what_people_did_is_audited(store: PlaneStore, reading: PlaneReader) -> None:
    notes = [("job_started", ""), ("submitted", "ada"), ("cancelled", "bob")]
    store.state.note(*(EventRow(job="a", kind=kind, author=who) for kind, who in notes))
    store.state.note(EventRow(job="b", kind="submitted", author="ada"))

    found = reading.state.authored("a", 0, 10)

    assert [(each.kind, each.author) for each in found] == notes[1:]
    assert reading.state.authored("a", found[0].seq, 10) == found[1:]


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    place = DatabasePlace(tmp_path / "plane")
    reading = open_reading(place)

    with pytest.raises(StateLost):
        reading.check()

    assert place.folder is not None
    assert not place.folder.exists()
