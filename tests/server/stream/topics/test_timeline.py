"""What happened, as lines of a timeline: of which sort, in which words, and what is left out."""

from pathlib import Path
from typing import Any

import pytest

from torchloom.server.stream.payloads import of_event, of_rank_event
from torchloom.server.stream.topics.timeline import concerns, entry_of, is_of_nodes, newest_of_job
from torchloom.weaver.events import Journal
from torchloom.weaver.store import open_store
from torchloom.weaver.store.rows import EventRow, RankEventRow

from ....harness.fresh_databases import fresh


def happened(kind: str, **more: Any) -> dict[str, Any]:
    entry = entry_of(of_event(EventRow(seq=7, time=1.0, job="j", kind=kind, **more)))
    assert entry is not None
    return entry


def command(state: str, kind: str = "knob", payload: Any = None, **said: Any) -> EventRow:
    values = {"before": None, "after": None, **said}
    facts = {"command": "c1", "kind": kind, "payload": payload or {}, **values}
    return EventRow(7, 1.0, "j", f"command_{state}", -1, 40, "ada", "too hot", facts)


def test_a_change_of_a_knob_has_who_before_and_after() -> None:
    payload = {"lr": {"value": 0.02, "hold": False}}

    entry = entry_of(of_event(command("applied", payload=payload, before=0.1, after=0.02)))

    assert entry == {
        "key": "w7",
        "seq": 7,
        "time": "1970-01-01T00:00:01.000+00:00",
        "step": 40,
        "kind": "knob",
        "title": "lr 0.1 -> 0.02",
        "what": "command_applied",
        "author": "ada",
        "reason": "too hot",
        "rank": None,
        "before": 0.1,
        "after": 0.02,
        "command": "c1",
        "facts": {
            "command": "c1",
            "kind": "knob",
            "payload": payload,
            "before": 0.1,
            "after": 0.02,
        },
        "is_failure": False,
    }


@pytest.mark.parametrize(
    ("row", "title"),
    [
        (
            command(
                "applied",
                payload={"lr": {"value": 1}, "wd": {"value": 2}},
                before={"lr": 0.5},
                after={"lr": 1, "wd": 2},
            ),
            "lr 0.5 -> 1, wd 2",
        ),
        (command("refused", payload={"lr": {"value": 9}}), "lr 9: refused"),
        (command("applied", "stop_at"), "stop at"),
        (command("aborted", "pause"), "pause: aborted"),
    ],
)
def test_a_command_is_told_in_few_words(row: EventRow, title: str) -> None:
    entry = entry_of(of_event(row))

    assert entry is not None
    assert entry["title"] == title


@pytest.mark.parametrize("state", ["accepted", "preparing", "committed", "offered_again"])
def test_a_command_that_is_on_its_way_is_no_entry(state: str) -> None:
    assert entry_of(of_event(command(state))) is None


@pytest.mark.parametrize(
    ("kind", "sort", "title"),
    [
        ("job_started", "state", "RUNNING"),
        ("recovered", "recovery", "recovered"),
        ("restart", "restart", "restart"),
        ("checkpoint_committed", "checkpoint", "checkpoint committed"),
        ("rank_gone", "rank", "rank 2 gone"),
        ("hang", "alert", "hang"),
        ("guard_reverted", "knob", "guard reverted"),
        ("something_new", "event", "something new"),
    ],
)
def test_whatever_happens_has_a_sort(kind: str, sort: str, title: str) -> None:
    entry = happened(kind, rank=2)

    assert (entry["kind"], entry["title"]) == (sort, title)


@pytest.mark.parametrize(
    ("kind", "reason", "is_failure"),
    [
        ("rank_gone", "exit_signal_9_rank_2", True),
        ("rank_gone", "exit_signal_9_rank_0", False),  # it ended with that one
        ("rank_gone", "ended", False),
        ("rank_gone", "exit_code_0_rank_2", False),
        ("checkpoint_failed", "", True),
        ("checkpoint_committed", "", False),
        ("restart", "", True),
        ("job_started", "", False),
    ],
)
def test_what_went_wrong_is_known_as_such(kind: str, reason: str, is_failure: bool) -> None:
    assert happened(kind, rank=2, reason=reason)["is_failure"] is is_failure


def test_of_a_long_timeline_the_newest_and_every_failure_are_told(tmp_path: Path) -> None:
    store = open_store(fresh(tmp_path))
    journal = Journal(store.state)
    journal.note("rank_gone", "j", rank=1, reason="exit_signal_9_rank_1")
    with store.state.together():
        for step in range(1200):
            journal.note("checkpoint_committed", "j", facts={"step": step})

    told = newest_of_job(store, "j", 50)
    store.close()

    assert (len(told), told[0]["what"]) == (51, "rank_gone")
    assert {entry["what"] for entry in told[1:]} == {"checkpoint_committed"}


def test_what_a_rank_says_of_its_job_is_no_entry() -> None:
    told = RankEventRow(7, "j", 1, 0, "x", 3, "job", 12, 1.0, {"total_steps": 60})

    assert entry_of(of_rank_event(told)) is None


def test_what_a_rank_tells_has_a_key_of_its_own() -> None:
    entry = entry_of(
        of_rank_event(RankEventRow(7, "j", 1, 0, "x", 3, "nan", 12, 1.0, {"name": "loss"}))
    )

    assert entry is not None
    assert (entry["key"], entry["kind"], entry["rank"], entry["step"]) == ("r7", "alert", 1, 12)


def test_facts_that_are_long_are_left_out() -> None:
    assert happened("verdict", facts={"stacks": "x" * 5000})["facts"] == {}
    assert happened("verdict", facts={"stacks": "x"})["facts"] == {"stacks": "x"}


def test_of_what_is_of_no_job_only_its_own_nodes_and_devices_are_a_jobs() -> None:
    rows = [
        EventRow(1, 1.0, "", "agent_lost", facts={"agent": "node-1"}),
        EventRow(2, 1.0, "", "device_failed", facts={"device": "GPU-1"}),
        EventRow(3, 1.0, "", "agent_lost", facts={"agent": "node-2"}),
        EventRow(4, 1.0, "", "token_added", author="ada", facts={"user": "eve"}),
    ]

    drafts = [draft for draft in map(of_event, rows) if is_of_nodes(draft)]
    entries = [entry for entry in map(entry_of, drafts) if entry]
    ours = [one for one in entries if concerns(one, frozenset({"node-1", "GPU-1"}))]

    assert [(one["kind"], one["title"]) for one in ours] == [
        ("node", "agent lost node-1"),
        ("alert", "device failed GPU-1"),
    ]
