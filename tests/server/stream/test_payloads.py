"""What is streamed, held key by key to the payloads that clients were promised."""

import json
import math
from array import array
from pathlib import Path
from typing import Any

from torchloom.server.logs.lines import Output, OutputLine
from torchloom.server.stream.payloads import (
    ReaderPosition,
    StreamPayload,
    encoded,
    of_event,
    of_line,
    of_rank_event,
    of_segments,
)
from torchloom.weaver.store.rows import EventRow, RankEventRow
from torchloom.weaver.store.series.curves import NewsSegment

AT = 1767225600.25
TIME = "2026-01-01T00:00:00.250+00:00"


def sent(draft: StreamPayload) -> dict[str, Any]:
    standing = ReaderPosition(1, 2, 3)
    standing.move(draft)
    found: dict[str, Any] = json.loads(encoded(draft, standing.cursor()))
    return found


def segment(name: str, values: dict[int, float], **more: Any) -> NewsSegment:
    facts = {"job": "j", "rank": 0, "role": "trainer", "generation": 0, "position": 9, **more}
    steps, numbers = array("q", values), array("d", values.values())
    return NewsSegment(
        name=name, steps=steps, times=array("d", [AT] * len(steps)), values=numbers, **facts
    )


def test_a_metric_has_the_seeds_keys_and_says_whose_it_is() -> None:
    (draft,) = of_segments([segment("loss", {120: 1.234}), segment("throughput", {120: 540})])

    found = sent(draft)

    seeds = {"type": "metric", "step": 120, "loss": 1.234, "throughput": 540}
    assert found == {
        **seeds,
        "seq": 9,
        "time": TIME,
        "rank": 0,
        "role": "trainer",
        "generation": 0,
        "job": "j",
        "cursor": "1.2.9",
    }


def test_a_state_has_the_seeds_keys_and_says_whose_it_is() -> None:
    facts = {"before": "RUNNING", "after": "RECOVERING"}
    row = EventRow(7, AT, "j", "job_state", reason="heartbeat_timeout_worker_2", facts=facts)

    found = sent(of_event(row))

    seeds = {"type": "state", "status": "RECOVERING", "reason": "heartbeat_timeout_worker_2"}
    assert found == {**seeds, "seq": 7, "time": TIME, "rank": None, "job": "j", "cursor": "7.2.3"}


def test_a_job_that_begins_is_in_a_state() -> None:
    found = [sent(of_event(EventRow(7, AT, "j", kind))) for kind in ("submitted", "job_started")]

    assert [(each["status"], each["reason"]) for each in found] == [
        ("QUEUED", "submitted"),
        ("RUNNING", "job_started"),
    ]


def test_what_else_the_weaver_notes_is_an_event() -> None:
    row = EventRow(7, AT, "j", "rank_suspect", 3, 40, "ann", "still", {"for": 2})

    assert sent(of_event(row)) == {
        "type": "event",
        "seq": 7,
        "time": TIME,
        "job": "j",
        "kind": "rank_suspect",
        "rank": 3,
        "step": 40,
        "author": "ann",
        "reason": "still",
        "facts": {"for": 2},
        "from": "weaver",
        "cursor": "7.2.3",
    }


def test_what_a_rank_tells_is_an_event() -> None:
    row = RankEventRow(8, "j", 1, 2, "life", 5, "nan", 40, AT, {"name": "loss"})

    assert sent(of_rank_event(row)) == {
        "type": "event",
        "seq": 8,
        "id": 8,
        "time": TIME,
        "job": "j",
        "kind": "nan",
        "rank": 1,
        "step": 40,
        "generation": 2,
        "facts": {"name": "loss"},
        "from": "rank",
        "cursor": "1.8.3",
    }


def test_a_line_is_a_log_with_its_gravity() -> None:
    output = Output("trainer/0/1:stderr", Path("/logs"), "stderr", "trainer", 1)
    draft = of_line(OutputLine(output, 10, 17, AT, "WARNING x"), "j")

    assert {**sent(draft), "cursor": "?"} == {
        "type": "log",
        "seq": 10,
        "time": TIME,
        "rank": 1,
        "role": "trainer",
        "stream": "stderr",
        "level": "warning",
        "message": "WARNING x",
        "job": "j",
        "cursor": "?",
    }


def test_numbers_that_json_has_not_are_null_and_names_of_ours_are_set_apart() -> None:
    values = {"nan": math.nan, "inf": math.inf, "time": 3.0, "step": 4.0}

    (draft,) = of_segments([segment(name, {1: value}) for name, value in values.items()])

    found = sent(draft)
    assert (found["nan"], found["inf"], found["metric.time"], found["metric.step"]) == (
        None,
        None,
        3.0,
        4.0,
    )
    assert (found["time"], found["step"]) == (TIME, 1)


def test_cursors_count_within_a_transaction_and_are_behind_it_at_its_end() -> None:
    first = [segment("loss", {1: 0.1, 2: 0.2, 3: 0.3}), segment("lr", {2: 1.0})]
    second = [segment("loss", {4: 0.4}, position=12)]
    standing, cursors = ReaderPosition(1, 2, 3), []

    for draft in of_segments([*first, *second]):
        standing.move(draft)
        cursors.append(standing.cursor())

    assert cursors == ["1.2.8-1", "1.2.8-2", "1.2.9", "1.2.12"]


def test_each_job_counts_its_own_messages_of_a_transaction() -> None:
    mixed = [segment("loss", {1: 0.1, 2: 0.2}), segment("loss", {1: 0.1, 2: 0.2}, job="k")]

    moves = [(draft.job, dict(draft.move)) for draft in of_segments(mixed)]

    halfway, done = {"arrived": 8, "row": 1}, {"arrived": 9, "row": 0}
    assert moves == [("j", halfway), ("j", done), ("k", halfway), ("k", done)]
