"""Curves, whatever was logged in whatever order, are those of a plain dict; charts cost little."""

import itertools
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, PlaneStore, open_store
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.store.rows import PointRow
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.curves import BadPointCursor, Best, Curve, NewsSegment
from torchloom.weaver.store.series.ingest import LogLimits
from torchloom.weaver.store.series.points import FIELDS, PointBuckets

from ....harness.metric_rows import Place, Shown, in_file, replaced, replaced_in_file, shown

NAMES = ("loss", "lr")
NAN, INF = math.nan, math.inf
JOBS = itertools.count()


@dataclass(frozen=True)
class Run:
    """Steps that a rank logs, one after the other, in one generation."""

    generation: int
    first: int
    stride: int
    count: int
    odd: float = 1.5  # a value that comes now and then
    every: int = 7

    def rows(self) -> list[tuple[int, float, float, float]]:
        found = []
        for n in range(self.count):
            value = self.odd if n % self.every == 0 else self.generation + n / 8
            found.append((self.first + n * self.stride, float(n), value, float(n % 5)))
        return found


@dataclass
class Logged:
    """A plain dict of what is to be shown, and what stores the same."""

    store: PlaneStore
    limits: LogLimits
    job: str = field(default_factory=lambda: f"job {next(JOBS)}")
    model: dict[tuple[str, int], PointRow] = field(default_factory=dict)
    every: dict[tuple[str, int, int], PointRow] = field(default_factory=dict)  # by generation, too
    _number: int = 0

    def log(self, *runs: Run) -> None:
        ingest = self.store.ingest(self.limits)
        batches = []
        for run in runs:
            head = Head(VERSION, self.job, run.generation, 0, "i")
            self._number += 1
            batches.append(
                NumberedBatch(head, self._number, [Metrics(head, NAMES, tuple(run.rows()))])
            )
            self._remember(run)
        ingest.write(batches)
        ingest.close()

    def _remember(self, run: Run) -> None:
        for step, time, *values in run.rows():
            for name, value in zip(NAMES, values, strict=True):
                known = self.model.get((name, step))
                point = PointRow(name, 0, step, run.generation, time, value)
                self.every[name, step, run.generation] = point
                if known is None or known.generation <= run.generation:
                    self.model[name, step] = point

    def points(self, name: str, first: int, last: int) -> list[PointRow]:
        of_it = [
            p for (its, step), p in self.model.items() if its == name and first <= step <= last
        ]
        return sorted(of_it, key=lambda point: point.step)

    def replaced(self, name: str) -> dict[int, list[PointRow]]:
        """Return by generation what later ones have replaced."""
        found: dict[int, list[PointRow]] = {}
        for (its, step, generation), point in self.every.items():
            if its == name and self.model[its, step].generation != generation:
                found.setdefault(generation, []).append(point)
        return {key: sorted(points, key=lambda one: one.step) for key, points in found.items()}


def same(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Compare values of which some are NaN."""
    return list(map(repr, found)) == list(map(repr, expected))


def read(store: PlaneStore, job: str, limit: int, **asked: Any) -> list[PointRow]:
    """Return all points, read page by page."""
    found: list[PointRow] = []
    cursor = None
    while True:
        page = curves.points(store.records, job, limit=limit, cursor=cursor, **asked)
        found += page.points
        cursor = page.next
        if cursor is None:
            return found
        assert len(page.points) == limit


def extreme(values: Sequence[float], pick: Any) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return pick(numbers) if numbers else NAN


def check(curve: Curve | None, expected: list[PointRow], buckets: int) -> None:
    """See that each bucket is what the points of its steps say, and that none is left out."""
    if curve is None:
        assert expected == []
        return
    count = len(curve.step_first)
    assert min(len(expected), buckets) / 2 <= count <= buckets
    check_buckets(curve, expected)


def check_replaced(curve: Curve, expected: dict[int, list[PointRow]], buckets: int) -> None:
    """See that the older points are those of a dict, and take few buckets."""
    assert [one.generation for one in curve.replaced] == sorted(expected)
    for one in curve.replaced:
        check_buckets(one.buckets, expected[one.generation])
    assert sum(len(one.buckets) for one in curve.replaced) <= buckets + len(expected)


def check_buckets(buckets: Curve | PointBuckets, expected: list[PointRow]) -> None:
    columns = zip(*(getattr(buckets, name) for name in FIELDS), strict=True)
    at = 0
    for first, last, low, high, final, time, many, nans in columns:
        its = expected[at : at + many]
        at += many
        assert (its[0].step, its[-1].step) == (first, last)
        values = [point.value for point in its]
        numbers = (extreme(values, min), extreme(values, max), its[-1].value, its[-1].time)
        assert same((low, high, final, time), numbers)
        assert nans == sum(map(math.isnan, values))
    assert at == len(expected)


def check_all(logged: Logged, first: int, last: int, buckets: int) -> None:
    """Compare all that can be asked with the dict."""
    records, job = logged.store.records, logged.job
    expected = {name: logged.points(name, first, last) for name in NAMES}
    everything = [point for name in NAMES for point in expected[name]]
    assert same(read(logged.store, job, 1009, first=first, last=last), everything)

    found = curves.curves(records, job, first=first, last=last, buckets=buckets, replaced=True)

    assert {curve.name for curve in found} == {name for name in NAMES if expected[name]}
    named = {curve.name: curve for curve in found}
    for curve in found:
        older = logged.replaced(curve.name)
        assert curve.has_replaced == bool(older)
        in_range = {
            generation: its
            for generation, points in older.items()
            if (its := [one for one in points if first <= one.step <= last])
        }
        check_replaced(curve, in_range, buckets)
    for name in NAMES:
        check(named.get(name), expected[name], buckets)
    all_of_it = {name: logged.points(name, -(2**63), 2**63 - 1) for name in NAMES}
    lasts = [points[-1] for points in all_of_it.values() if points]
    assert same(curves.last(records, job), lasts)
    assert same(records.latest(job), lasts)
    for best in curves.best(records, job):
        values = [point.value for point in all_of_it[best.name]]
        assert best.count == len(values)
        for point, pick in ((best.low, min), (best.high, max)):
            wanted = extreme([value for value in values if math.isfinite(value)], pick)
            where = [p for p in all_of_it[best.name] if p.value == wanted]
            assert point == (where[0] if where else None)


RUNS = st.builds(
    Run,
    generation=st.integers(0, 4),
    first=st.one_of(st.integers(0, 20_000), st.sampled_from([-(2**63), 2**63 - 4000 * 50])),
    stride=st.sampled_from([1, 1, 1, 2, 50, -1, 0]),
    count=st.sampled_from([1, 3, 50, 300, 1500, 4000]),
    odd=st.sampled_from([NAN, INF, -INF, 2.5, -0.0]),
    every=st.sampled_from([1, 7, 100]),
).filter(lambda run: run.stride >= 0 or run.first - run.count > -(2**63))


@pytest.mark.process  # it takes seconds
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.lists(RUNS, min_size=1, max_size=3), min_size=1, max_size=8),
    st.sampled_from([1, 500, 10**9]),
    st.tuples(st.integers(-10, 20_000), st.integers(0, 20_000)),
    st.sampled_from([1, 7, 100, 1000]),
)
def test_curves_are_those_of_a_dict_that_keeps_the_highest_generation_of_each_step(
    store: PlaneStore, turns: list[list[Run]], enough: int, ends: tuple[int, int], buckets: int
) -> None:
    logged = Logged(store, LogLimits(enough))

    for turn in turns:
        logged.log(*turn)

    check_all(logged, -(2**63), 2**63 - 1, buckets)
    check_all(logged, ends[0], sum(ends), buckets)


@pytest.mark.process  # it takes seconds
def test_a_restart_from_a_checkpoint_shows_the_new_steps_and_keeps_the_old(
    store: PlaneStore,
) -> None:
    logged = Logged(store, LogLimits(enough=1))

    for first in range(0, 20_000, 1000):
        logged.log(Run(0, first, 1, 1000))
    for first in range(9_500, 30_000, 1000):
        logged.log(Run(1, first, 1, 1000))
        if first % 4000 == 1500 or first == 29_500:  # all of it is looked at each time
            check_all(logged, 0, 10**9, 100)

    with store.records.snapshot() as reader:
        ((hidden,),) = reader.rows("SELECT sum(count) FROM chunks WHERE kind = 2")
        ((loose,),) = reader.rows("SELECT sum(loose) FROM series")
    assert 2 * 10_500 - loose <= hidden <= 2 * 10_500


@pytest.mark.process  # it takes seconds
def test_steps_scattered_over_a_long_curve_are_merged_a_part_at_a_time(store: PlaneStore) -> None:
    logged = Logged(store, LogLimits(enough=1))
    logged.log(Run(0, 0, 1, 150_000))

    for first in (3, 77, 5, 100_000, 7):
        logged.log(Run(1, first, 93, 1600))
        logged.log(Run(2, first, -1, 2))

    check_all(logged, 1000, 140_000, 200)


def in_the_tables(store: PlaneStore) -> tuple[dict[Place, Shown], dict[Place, dict[int, Shown]]]:
    """Return what is shown and what is not, read by other code than ours."""
    if store.place.folder is None:
        import psycopg

        with psycopg.connect(store.place.url) as connection:
            return shown(connection, "records."), replaced(connection, "records.")
    path = store.place.folder / "records.db"
    return in_file(path), replaced_in_file(path)


@pytest.mark.parametrize("enough", [1, 10**9], ids=["in a chunk", "as it came"])
def test_steps_that_a_restart_repeats_are_kept_as_they_were_before(
    store: PlaneStore, enough: int
) -> None:
    logged = Logged(store, LogLimits(enough))
    logged.log(Run(1, 0, 1, 10, every=100))
    logged.log(Run(2, 5, 1, 5, odd=99.0, every=1))

    loss, _ = curves.curves(store.records, logged.job, replaced=True)

    (older,) = loss.replaced
    assert loss.last == [1.5, *(1 + n / 8 for n in range(1, 5)), *[99.0] * 5]
    assert (older.generation, older.buckets.step_last) == (1, [5, 6, 7, 8, 9])
    assert older.buckets.last == [1 + n / 8 for n in range(5, 10)]
    plain, _ = curves.curves(store.records, logged.job)
    assert plain == replace(loss, replaced=[])
    _, kept = in_the_tables(store)
    mine = {place[4]: its for place, its in kept.items() if place[:2] == (logged.job, "loss")}
    assert {step: its[1].value for step, its in mine.items()} == dict(
        zip(older.buckets.step_last, older.buckets.last, strict=True)
    )


def test_of_points_that_were_replaced_the_one_that_arrived_last_is_kept(
    store: PlaneStore,
) -> None:
    """An agent may send the last points of a process after the next one has begun."""
    logged = Logged(store, LogLimits(enough=1))
    logged.log(Run(1, 0, 1, 5000, odd=1.0, every=1))
    logged.log(Run(2, 9, 1, 2, odd=2.0, every=1))
    logged.log(Run(1, 10, 1, 1, odd=3.0, every=1))
    check_all(logged, 0, 5000, 100)

    logged.log(Run(1, 5000, 1, 5000))  # the points that wait are sealed
    check_all(logged, 0, 5000, 100)


def test_a_second_reader_finds_the_same_points_in_the_bytes(store: PlaneStore) -> None:
    logged = Logged(store, LogLimits(enough=3000))
    for turn in range(12):
        logged.log(Run(turn % 3, turn * 700, 1, 1000, NAN))

    found, older = in_the_tables(store)

    expected = {
        (logged.job, name, 0, "", step): (point.generation, point.time, point.value)
        for (name, step), point in logged.model.items()
    }
    assert found.keys() == expected.keys()
    assert all(same(found[place], expected[place]) for place in expected)
    assert {
        (place[1], place[4], generation): repr(point)
        for place, its in older.items()
        for generation, point in its.items()
    } == {
        (name, step, one.generation): repr(Shown(one.generation, one.time, one.value))
        for (name, step, generation), one in logged.every.items()
        if logged.model[name, step].generation != generation
    }


@pytest.mark.process  # it takes seconds
def test_a_long_curve_is_read_from_its_levels(tmp_path: Path) -> None:
    """Spans are summed up anew where a restart goes back, and the ends of a range are exact."""
    store, head = open_store(DatabasePlace(tmp_path)), Head(VERSION, "j", 0, 0, "i")
    ingest, long, ends = store.ingest(LogLimits(enough=1)), 1_100_000, (70_001, 1_060_003)
    rows = [(step, 0.0, math.sin(step)) for step in range(long)]
    for number, at in enumerate(range(0, long, 100_000), 1):
        ingest.write(
            [NumberedBatch(head, number, [Metrics(head, ("loss",), tuple(rows[at:][:100_000]))])]
        )
    again = tuple((step, 1.0, float(step)) for step in range(1_000_000, 1_009_000))
    later = Head(VERSION, "j", 1, 0, "k")
    ingest.write([NumberedBatch(later, 1, [Metrics(later, ("loss",), again)])])
    ingest.close()
    rows[1_000_000:1_009_000] = list(again)
    expected = [PointRow("loss", 0, *row[:1], 0, *row[1:]) for row in rows[ends[0] : ends[1] + 1]]

    for buckets in (1, 10, 200, 1000, 5000):
        (curve,) = curves.curves(store.records, "j", {"loss"}, {0}, *ends, buckets)
        check(curve, expected, buckets)

    with store.records.snapshot() as reader:
        spans = reader.rows('SELECT chunks, count FROM spans ORDER BY "first"')
        ((loose,),) = reader.rows("SELECT loose FROM series")
    assert spans[0][0] == 256
    assert sum(count for _, count in spans) == long - loose
    store.close()


def test_what_came_is_put_into_chunks_once(store: PlaneStore) -> None:
    logged = Logged(store, LogLimits(enough=1))

    for first in range(0, 9000, 300):
        logged.log(Run(0, first, 1, 300))

    with store.records.snapshot() as reader:
        counts = reader.rows("SELECT sum(count) FROM chunks GROUP BY series")
        ((last, merged),) = reader.rows("SELECT last, merged FROM progress")
    assert ([int(count) for (count,) in counts], last) == ([9000, 9000], merged)


@pytest.mark.process  # it takes seconds
def test_who_reads_beside_the_writer_sees_whole_batches_only(store: PlaneStore) -> None:
    """Points are merged and sealed all the while; no moment lacks one or has one twice."""
    logged, size = Logged(store, LogLimits(enough=3000)), 500
    writer = threading.Thread(
        target=lambda: [logged.log(Run(0, at, 1, size)) for at in range(0, 60 * size, size)]
    )
    seen, is_over = [0], False

    writer.start()
    while not is_over:
        is_over = not writer.is_alive()
        drawn = curves.curves(store.records, logged.job, buckets=50)
        ends = {(curve.step_last[-1] + 1, sum(curve.count)) for curve in drawn}
        steps = [point.step for point in store.records.points(logged.job, "lr")]
        assert steps == list(range(len(steps)))
        assert len(steps) % size == 0
        for end, count in ends:
            assert (end, len(ends)) == (count, 1)
            seen.append(count)
    writer.join()

    assert seen == sorted(seen)
    assert seen[-1] == 60 * size
    assert len(set(seen)) > 3


def test_one_moment_stays_as_it_was_while_more_is_stored(store: PlaneStore) -> None:
    logged, reading = Logged(store, LogLimits(enough=1)), open_reading(store.place)
    logged.log(Run(0, 0, 1, 10))

    for records in (store.records, reading.records):
        with records.snapshot() as reader:
            before = reader.rows("SELECT last, merged FROM progress")
            logged.log(Run(0, 10, 1, 10))
            assert reader.rows("SELECT last, merged FROM progress") == before
        with records.snapshot() as reader:
            assert reader.rows("SELECT last, merged FROM progress") != before
    reading.close()


def test_two_writers_take_turns_and_lose_nothing(store: PlaneStore) -> None:
    """An old weaver may still merge while the next one has begun."""
    head = Head(VERSION, "j", 0, 0, "i")
    ingests = [store.ingest(LogLimits(enough=900)), store.ingest(LogLimits(enough=1))]

    for number in range(40):
        rows = tuple((number * 150 + n, 0.0, 1.0) for n in range(150))
        batch = NumberedBatch(head, number + 1, [Metrics(head, ("loss",), rows)])
        for ingest in (ingests[number % 2], ingests[1 - number % 2]):
            assert ingest.write([batch]) == [number + 1]

    assert [point.step for point in store.records.points("j")] == list(range(6000))
    for ingest in ingests:
        ingest.close()


def test_pages_of_points_end_and_begin_anywhere(store: PlaneStore) -> None:
    logged = Logged(store, LogLimits(enough=4))
    logged.log(Run(0, 5, 3, 10))

    for limit in (1, 3, 10, 20, 21):
        assert read(store, logged.job, limit) == [
            point for name in NAMES for point in logged.points(name, 0, 100)
        ]
    assert read(store, logged.job, 2, names={"lr"}, first=8, last=14) == logged.points("lr", 8, 14)
    assert curves.points(store.records, logged.job, ranks={3}).points == []
    for nonsense in ("", "1", "a.b.c.d", "1.2.zz.zz", "1.2.c3.", "1.2.61.62.63"):
        with pytest.raises(BadPointCursor, match="begin without a cursor"):
            curves.points(store.records, logged.job, cursor=nonsense)


def test_what_a_job_has_is_told(store: PlaneStore) -> None:
    logged = Logged(store, LogLimits(enough=4))
    logged.log(Run(2, 1, 1, 3, NAN, 2))

    assert curves.names(store.records, logged.job) == ["loss", "lr"]
    found = curves.series(store.records, logged.job, names=["lr"])
    assert [(each.job, each.name, each.rank, each.role) for each in found] == [
        (logged.job, "lr", 0, "")
    ]
    low = PointRow("loss", 0, 2, 2, 1.0, 2.125)
    assert curves.best(store.records, logged.job)[0] == Best("loss", 0, "", low, low, 3)
    assert curves.curves(store.records, "another") == []
    assert curves.last(store.records, "another") == []
    assert curves.best(store.records, "another") == []


def told(segments: Iterable[NewsSegment]) -> list[tuple[str, str, int, int, float]]:
    return [
        (each.job, each.name, each.generation, step, value)
        for each in segments
        for step, value in zip(each.steps, each.values, strict=True)
    ]


def of(job: str, run: Run) -> list[tuple[str, str, int, int, float]]:
    rows = run.rows()
    return [
        (job, name, run.generation, row[0], row[2 + place])
        for place, name in enumerate(NAMES)
        for row in rows
    ]


@pytest.mark.parametrize("enough", [1, 10**9])
def test_who_follows_hears_everything_once_and_in_order(store: PlaneStore, enough: int) -> None:
    one, two = Logged(store, LogLimits(enough)), Logged(store, LogLimits(enough))
    begin = curves.news(store.records).next
    assert curves.news(store.records, begin) == curves.News([], begin)
    runs = [Run(1, 10, 1, 5), Run(0, 11, 1, 3), Run(2, 1, 7, 4)]

    for run in runs:
        one.log(run)
        two.log(run)
    everything = curves.news(store.records, begin)
    mine = curves.news(store.records, begin, jobs=[two.job])

    assert told(everything.segments) == [
        p for r in runs for each in (one, two) for p in of(each.job, r)
    ]
    assert told(mine.segments) == [point for run in runs for point in of(two.job, run)]
    assert everything.is_whole
    assert curves.news(store.records, everything.next) == curves.News([], everything.next)
    assert curves.news(store.records, everything.next + 9) == curves.News(
        [], everything.next, is_whole=False
    )
    heard, at = [], begin
    while (part := curves.news(store.records, at, limit=1)).segments:
        heard += told(part.segments)
        at = part.next
    assert heard == told(everything.segments)


@pytest.mark.process  # it takes seconds
def test_who_comes_back_after_too_long_misses_nothing_all_the_same(store: PlaneStore) -> None:
    """The log is cut; chunks say what came since, and perhaps a little more."""
    logged = Logged(store, LogLimits(enough=1, kept=100_000))
    logged.log(Run(0, 0, 1, 5000))
    begin = curves.news(store.records).next
    later = [Run(0, first, 1, 3000) for first in range(5000, 95_000, 3000)]
    for run in later:
        logged.log(run)

    heard: set[tuple[str, str, int, int, float]] = set()
    at, is_whole, rounds = begin, True, 0
    while (part := curves.news(store.records, at, limit=20_000)).segments:
        heard |= set(told(part.segments))
        at, is_whole, rounds = part.next, is_whole and part.is_whole, rounds + 1

    assert not is_whole
    assert rounds > 1
    assert heard >= {point for run in later for point in of(logged.job, run)}
