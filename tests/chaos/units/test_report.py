"""Each fault by its own name and cost; the report as a value, as a table and as an exit code."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from torchloom.chaos import report
from torchloom.chaos.checker.judgement import opened
from torchloom.chaos.checker.promises import PromiseAnswer
from torchloom.chaos.checker.readers import Struck, StruckSeries, read_series

from .staged import AGAIN, HIT, JOB, KILLED, Stage

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/json/chaos.schema.json").read_text())


def test_of_several_lines_about_a_fault_the_last_stands(stage: Stage) -> None:
    missed = {"n": 2, "kind": "stop", "outcome": "missed", "target": None, "struck_at": None}
    planned = {"n": 3, "kind": "kill", "outcome": "planned", "target": None, "struck_at": None}
    stage.strikes[-1:-1] = [missed, planned]
    stage.struck()

    assert read_series(stage.run / "chaos.jsonl") == StruckSeries(
        seed=7,
        faults=(Struck(1, "kill", KILLED, HIT, (101, 6), "h", recovered=AGAIN + 1, step=6),),
        missed=1,
        ended="faults",
    )


def test_a_kill_has_its_name_and_its_price(stage: Stage) -> None:
    found = report.report_of(stage.judged())

    assert found["faults"] == [
        {
            "n": 1,
            "kind": "kill",
            "rank": HIT,
            "at": KILLED,
            "step": 6,
            "is_recovered": True,
            "named": "exit_signal_9_rank_1",
            "named_rightly": True,
            "detected_seconds": 0.1,
            "recovered_seconds": 1.5,
            "generation": 2,
            "steps_again": 0,
            "committed_steps_lost": 0,
            "survivors_kept": 1,
            "survivors": 1,
            "why": "",
        }
    ]
    assert (found["ok"], found["verdict"], found["exact"]) == (False, "unknown", True)
    assert list(report.lines(found))[-1] == "nothing broken; unknown: I10"  # nobody asked
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(found)))


def test_when_all_is_known_and_kept_it_is_ok(stage: Stage) -> None:
    judged = stage.judged()
    known = tuple(replace(one, answer=PromiseAnswer.HELD) for one in judged.verdicts)

    found = report.report_of(replace(judged, verdicts=known))

    assert (found["ok"], found["verdict"], list(report.lines(found))[-1]) == (True, "ok", "ok")
    assert report.EXIT_CODES == {"ok": 0, "not ok": 1, "unknown": 3}


def test_a_job_that_blames_another_rank_names_it_wrongly(stage: Stage) -> None:
    stage.sql("state", "update events set reason = 'exit_signal_9_rank_0' where seq in (2, 3)")

    found = report.report_of(stage.judged())["faults"][0]

    assert (found["named"], found["named_rightly"]) == ("exit_signal_9_rank_0", False)
    assert found["why"] == "it reports exit_signal_9_rank_0, which no fault has hit"


def test_a_job_that_says_nothing_of_a_death_names_it_wrongly(stage: Stage) -> None:
    stage.sql("state", "update events set reason = '' where seq in (2, 3)")

    found = report.report_of(stage.judged())["faults"][0]

    assert (found["named"], found["named_rightly"], found["why"]) == (
        "",
        False,
        "no event names it",
    )


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (-9, ("exit_signal_9_rank_0", True, "")),
        (
            1,
            (
                "exit_code_1_rank_0",
                False,
                "it reports exit_code_1_rank_0 for the process that was hit",
            ),
        ),
        (None, ("", False, "no event names it")),
    ],
)
def test_of_two_deaths_in_one_recovery_each_is_named_by_its_own_end(
    stage: Stage, code: int | None, named: tuple[str, bool, str]
) -> None:
    target = {"what": "rank", "rank": 0, "pid": 100, "started": "5", "node": "h", "name": ""}
    stage.strikes.insert(3, {**stage.strikes[2], "n": 2, "target": target})
    stage.struck()
    stage.event(KILLED, "exit", "", rank=0, pid=99, code=-9)  # of another process
    if code is not None:
        stage.event(KILLED + 0.1, "exit", "", rank=0, pid=100, code=code)

    found = report.report_of(stage.judged())["faults"]

    assert [(one["named"], one["named_rightly"], one["why"]) for one in found] == [
        ("exit_signal_9_rank_1", True, ""),
        named,
    ]


def test_a_process_that_was_hit_twice_is_named_by_what_it_died_of(stage: Stage) -> None:
    target = {"what": "rank", "rank": 0, "pid": 100, "started": "5", "node": "h", "name": ""}
    twice = [
        {**stage.strikes[2], "n": n, "kind": kind, "target": target}
        for n, kind in enumerate(("raise", "kill"), 2)
    ]
    stage.strikes[3:3] = twice
    stage.struck()
    stage.event(KILLED + 0.1, "exit", "", rank=0, pid=100, code=-9)

    found = report.report_of(stage.judged())["faults"]

    assert [(one["named"], one["named_rightly"]) for one in found[1:]] == [
        ("exit_signal_9_rank_0", True)
    ] * 2


def test_a_part_of_the_plane_needs_no_name_and_may_blame_nobody(stage: Stage) -> None:
    stage.strikes[2] |= {"kind": "kill-weaver", "target": {"what": "weaver", "rank": None}}
    stage.struck()

    found = report.report_of(stage.judged())["faults"][0]

    assert (found["named_rightly"], found["named"]) == (False, "exit_signal_9_rank_1")


def test_steps_done_again_and_committed_ones_are_counted(stage: Stage) -> None:
    for rank in (0, 1):
        lines = stage.lines(rank)
        at = next(n for n, line in enumerate(lines) if line["generation"] == 2)
        again = [stage.line(rank, s, generation=2, time=AGAIN + s / 9) for s in (4, 5)]
        incarnation = {name: lines[at][name] for name in ("incarnation", "pid", "started")}
        begun = {**lines[at], "step": 3, "digest": "p3", "state": "o3", "own": f"b{rank}.3"}
        stage.book(
            rank, [*lines[:at], begun, *({**a, **incarnation} for a in again), *lines[at + 1 :]]
        )

    found = report.report_of(stage.judged())

    assert (found["totals"]["steps_again"], found["totals"]["committed_steps_lost"]) == (2, 2)
    assert found["ok"] is False  # a survivor went back


def test_a_fault_that_was_not_recovered_from_is_not_ok(stage: Stage) -> None:
    stage.strikes[2] |= {"recovered_at": None}
    stage.struck()
    stage.state("FAILED")

    found = report.report_of(stage.judged())

    assert (found["ok"], found["totals"]["recovered"]) == (False, 0)
    assert "no recovery from fault 1 (kill)" in report.lines(found)


def test_the_table_fits_eighty_columns(stage: Stage) -> None:
    stage.run.joinpath("checkpoints/ckpt_step_00004/worker_0.pt").write_bytes(b"x")

    text = list(report.lines(report.report_of(stage.judged())))

    assert max(map(len, text)) <= 80
    assert text[0] == f"1 faults on {JOB}, seed 7: 1 recovered, 0 not; 0 could not be struck"
    assert [line.split() for line in text[2:4]] == [
        ["KIND", "STRUCK", "BACK", "NAMED", "KNOWN", "p50", "SLOWEST", "AGAIN"],
        ["kill", "1", "1", "1/1", "0.10", "s", "1.50", "s", "1.50", "s", "0"],
    ]
    assert text[5] == "I1   broken   a committed checkpoint is whole and readable"
    assert text[6] == "              ckpt_step_00004: worker_0.pt has 1 bytes, not 6"
    assert text[-1] == "not ok"


def test_who_strikes_hears_of_a_broken_promise_once(stage: Stage) -> None:
    judge = opened(JOB, stage.run, stage.against)
    strike = read_series(stage.run / "chaos.jsonl").faults[0]
    judge.begin(None)
    stage.run.joinpath("checkpoints/ckpt_step_00004/worker_0.pt").write_bytes(b"x")

    first, second = judge.judge(strike), judge.judge(strike)

    assert first == ["I1: ckpt_step_00004: worker_0.pt has 1 bytes, not 6"]
    assert second == []
    assert judge.end(None)["ok"] is False


@pytest.mark.process
def test_the_judge_loads_nothing_of_what_is_judged() -> None:
    words = "import sys, torchloom.chaos.checker.judgement; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)

    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("torchloom.")}
    assert rooms == {"chaos"}
