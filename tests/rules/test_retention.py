"""What may go of ended runs, and what never does."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.rules.retention import (
    KEEP,
    BadRetention,
    EndedRun,
    Removal,
    RetentionLimits,
    due,
    in_words,
    limits_of,
)

DAY = 86400.0
NOW = 1000 * DAY


def ended(job: str, days: float, name: str = "", tags: str = "", parent: str = "") -> EndedRun:
    """Return a run that ended so many days ago."""
    return EndedRun(job, True, NOW - days * DAY, name, frozenset(tags.split()), parent)


def test_what_a_section_says_is_read() -> None:
    section = {
        "runs": '"90d"',
        "metrics": "4w",
        "logs": "36 h",
        "dumps": "never",
        "keep": "5",
        "pinned": "gpt-1a2b, best paper",
    }

    assert limits_of(section) == RetentionLimits(
        runs=90 * DAY,
        metrics=28 * DAY,
        logs=1.5 * DAY,
        dumps=None,
        keep=5,
        pinned=frozenset({"gpt-1a2b", "best", "paper"}),
    )


def test_without_a_section_everything_is_kept() -> None:
    runs = [ended(str(at), 10_000) for at in range(500)]

    assert limits_of({}) == RetentionLimits(keep=KEEP)
    assert due(limits_of({}), runs, NOW) == []


@pytest.mark.parametrize(
    ("key", "text", "remedy"),
    [
        ("runs", "90", "write an age such as 12h, 90d or 4w, or never"),
        ("runs", "-1d", "write an age"),
        ("logs", "", "write an age"),
        ("logs", "1y", "write an age"),
        ("metrics", "1e9d", "write an age"),
        ("metrics", "infd", "write an age"),
        ("keep", "all", "write how many runs"),
        ("keep", "-1", "write how many runs"),
        ("keep", "²", "write how many runs"),
        ("keep", "9" * 5000, "write how many runs"),
        ("log", "30d", "unknown key; the keys are: runs, metrics, logs, dumps, keep"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(key: str, text: str, remedy: str) -> None:
    with pytest.raises(BadRetention, match=re.escape(remedy)) as refused:
        limits_of({"runs": "1d", key: text})

    assert refused.value.field == key
    assert len(str(refused.value)) < 300


def test_each_thing_goes_at_its_own_age() -> None:
    limits = RetentionLimits(runs=90 * DAY, metrics=30 * DAY, logs=7 * DAY, dumps=2 * DAY, keep=0)
    runs = [ended("a", 1), ended("b", 3), ended("c", 8), ended("d", 31), ended("e", 91)]

    assert due(limits, runs, NOW) == [
        Removal("run", "e"),
        Removal("metrics", "d"),
        Removal("logs", "d"),
        Removal("dumps", "d"),
        Removal("logs", "c"),
        Removal("dumps", "c"),
        Removal("dumps", "b"),
    ]


def test_who_is_pinned_by_id_name_or_tag_stays() -> None:
    limits = RetentionLimits(runs=DAY, keep=0, pinned=frozenset({"a", "best", "paper"}))
    runs = [ended("a", 9), ended("b", 9, name="best"), ended("c", 9, tags="x paper"), ended("d", 9)]

    assert due(limits, runs, NOW) == [Removal("run", "d")]


def test_what_a_rank_launched_goes_with_its_run_and_counts_for_none() -> None:
    limits = RetentionLimits(runs=DAY, keep=1)
    child = ended("child", 50, parent="old")
    runs = [child, ended("old", 9), ended("new", 8), ended("orphan", 70, parent="gone")]

    assert due(limits, runs, NOW) == [
        Removal("run", "orphan"),
        Removal("run", "old"),
        Removal("run", "child"),
    ]
    assert due(limits, [child, ended("old", 9)], NOW) == []


def test_what_is_kept_is_told_in_words() -> None:
    assert in_words(RetentionLimits()) == "everything is kept"
    assert in_words(
        RetentionLimits(runs=90 * DAY, logs=5400.0, keep=3, pinned=frozenset("ab"))
    ) == ("runs after 90d, logs after 90m; the last 3 runs and 2 pinned stay")


ages = st.none() | st.floats(0, 100 * DAY)
many = st.lists(
    st.builds(
        EndedRun,
        st.sampled_from([f"run-{at}" for at in range(12)]),
        st.booleans(),
        st.none() | st.floats(0, NOW),
        st.sampled_from(["", "best"]),
    ),
    unique_by=lambda run: run.id,
    max_size=12,
)


@given(st.builds(RetentionLimits, ages, ages, ages, ages, st.integers(0, 5)), many, st.booleans())
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
def test_whatever_the_limits_the_last_the_pinned_and_those_that_run_stay(
    limits: RetentionLimits, runs: list[EndedRun], pins: bool
) -> None:
    pinned = frozenset({"best"}) if pins else frozenset[str]()
    limits = RetentionLimits(**limits.ages, keep=limits.keep, pinned=pinned)

    going = {one.job for one in due(limits, runs, NOW)}

    over = [run for run in runs if run.is_over and run.ended_at is not None]
    left = sorted((run.ended_at or 0.0 for run in over if run.id not in going), reverse=True)
    assert going <= {run.id for run in over}
    assert not pins or not any(run.name == "best" for run in over if run.id in going)
    newest = sorted((run.ended_at or 0.0 for run in over), reverse=True)[: limits.keep]
    assert left[: len(newest)] == newest
