"""A step that is applied twice, left out or done with other bits is found; so are two lives."""

import json
from typing import Any

import pytest

from torchloom.chaos.checker.promises import PromiseVerdict, broken, held, unknown

from .staged import AGAIN, Stage


def verdict(stage: Stage, name: str, **more: Any) -> PromiseVerdict:
    return next(one for one in stage.judged(**more).verdicts if one.name == name)


def test_a_step_that_is_applied_twice_in_a_generation_is_found(stage: Stage) -> None:
    lines = stage.lines(0)
    stage.book(0, [*lines[:5], lines[4], *lines[5:]])

    assert stage.broken() == {"I3": "rank 0 applied step 3 2 times in generation 1"}


def test_a_step_that_nobody_gave_and_nobody_did_is_found(stage: Stage) -> None:
    lines = stage.lines(1)
    stage.book(1, [line for line in lines if line["step"] != 5])

    assert stage.broken() == {"I3": "rank 1 never had step 5"}


def test_a_survivor_that_goes_back_is_found(stage: Stage) -> None:
    back = stage.line(0, 5, generation=2, incarnation="a0", time=AGAIN + 0.5)
    lines = stage.lines(0)
    stage.book(0, [*lines[:8], back, *lines[8:]])

    assert stage.broken() == {"I3": "rank 0 survived and applied step 5 again"}


def test_a_step_that_is_done_again_with_other_samples_is_found(stage: Stage) -> None:
    again = stage.line(1, 5, generation=2, incarnation="b1", samples="x", time=AGAIN + 0.5)
    lines = stage.lines(1)
    stage.book(1, [*lines[:8], again, *lines[8:]])

    found = stage.broken()

    assert found["I3"] == "rank 1: step 5 differed when it was repeated"
    assert found["I4"] == "rank 1: different samples after step 5"


def test_ranks_that_grow_apart_are_found_without_another_run(stage: Stage) -> None:
    lines = stage.lines(1)
    stage.book(1, [*lines[:-1], {**lines[-1], "digest": "other"}])

    assert verdict(stage, "I3", against=None).fact == "after step 11 ranks had different parameters"
    assert verdict(stage, "I4", against=None) == unknown(
        "I4", "no digests of an undisturbed run were given: --against DIR"
    )


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("digest", "parameters"),
        ("state", "optimizer states"),
        ("own", "buffers"),
        ("samples", "samples"),
        ("chance", "random numbers"),
    ],
)
def test_one_bit_of_another_run_is_found(stage: Stage, name: str, word: str) -> None:
    for rank in (0, 1):
        lines = stage.lines(rank)
        stage.book(rank, [*lines[:-1], {**lines[-1], name: "other"}])

    assert stage.broken() == {"I4": f"rank 0: different {word} after step 11"}


def test_what_a_newcomer_was_given_is_compared_too(stage: Stage) -> None:
    lines = stage.lines(1)
    given = next(at for at, line in enumerate(lines) if line["kind"] == "joined" and at)
    stage.book(1, [*lines[:given], {**lines[given], "own": "other"}, *lines[given + 1 :]])

    assert stage.broken() == {"I4": "rank 1: different buffers after step 5"}


def test_a_run_that_ends_early_is_not_exact(stage: Stage) -> None:
    for rank in (0, 1):
        stage.book(rank, stage.lines(rank)[:-1])

    assert stage.judged().is_exact is False


def test_of_a_run_that_still_trains_it_is_not_known_whether_it_is_exact(stage: Stage) -> None:
    status = stage.run / "status.json"
    status.write_text(status.read_text().replace("SUCCEEDED", "RUNNING"))
    assert stage.judged().is_exact is True  # it has every step of the other one already
    for rank in (0, 1):
        stage.book(rank, stage.lines(rank)[:-1])

    assert stage.judged().is_exact is None
    stage.book(0, [*stage.lines(0)[:-1], {**stage.lines(0)[-1], "digest": "other"}])
    assert stage.judged().is_exact is False


def test_without_ledgers_nobody_knows(stage: Stage) -> None:
    why = "the ranks wrote no step digest log: run the job with LOOM_LEDGER=DIR"

    found = stage.judged(digests=None)

    assert [one for one in found.verdicts if one.name in ("I3", "I4", "I6")] == [
        unknown(name, why) for name in ("I3", "I4", "I6")
    ]
    assert found.is_exact is None


def test_a_ledger_of_a_rank_is_missed_and_the_reason_why_there_is_none_is_told(
    stage: Stage,
) -> None:
    status = {"state": "SUCCEEDED", "ranks": [{"rank": rank} for rank in range(3)]}
    stage.run.joinpath("status.json").write_text(json.dumps(status))

    assert verdict(stage, "I3") == unknown("I3", "rank 2 wrote no step digest log")
    assert verdict(stage, "I6", digests=None, no_digests="refused: no") == unknown(
        "I6", "refused: no"
    )


def test_a_ledger_that_was_begun_later_must_go_on_from_there(stage: Stage) -> None:
    for rank in (0, 1):
        stage.book(rank, [line for line in stage.lines(rank) if line["step"] >= 3])

    assert verdict(stage, "I3") == broken("I3", "rank 0 never had step 0")
    assert verdict(stage, "I3", is_from_start=False) == held("I3")
    stage.book(1, [line for line in stage.lines(1) if line["step"] != 8])
    assert verdict(stage, "I3", is_from_start=False) == broken("I3", "rank 1 never had step 8")


def test_a_rank_with_two_lives_at_once_is_found(stage: Stage) -> None:
    stage.process(101, 6)
    stage.process(201, 9)
    checker = stage.checker()
    for pid in (100, 101, 201):
        stage.gone(pid)

    facts = {one.name: one.fact for one in checker.judged().verdicts}

    assert facts["I6"] == "after fault -1 rank 1 had 2 incarnations at once"


def test_another_process_with_the_same_number_is_no_life(stage: Stage) -> None:
    stage.process(101, 777)
    stage.process(201, 9)
    checker = stage.checker()
    for pid in (100, 101, 201):
        stage.gone(pid)

    assert {one.fact for one in checker.judged().verdicts} == {""} | {
        "no secret in a log; the API was not checked"
    }


def test_a_zombie_that_writes_after_its_successor_is_found(stage: Stage) -> None:
    late = stage.line(1, 5, time=AGAIN + 3)
    stage.book(1, [*stage.lines(1)[:-1], {**late, "step": 11}])

    assert "an incarnation wrote step 11 after its successor had" in stage.broken()["I6"]


def test_a_step_of_an_older_generation_that_comes_late_is_found(stage: Stage) -> None:
    lines = stage.lines(0)
    late = {**lines[6], "time": AGAIN + 4}
    stage.book(0, [*lines[:6], late, *lines[7:]])

    assert stage.broken() == {"I6": "rank 0 applied step 5 in generation 1, late"}


def test_a_checkpoint_that_two_generations_committed_is_found(stage: Stage) -> None:
    stage.sql("state", "update checkpoints set generation = 1 where step = 8")

    fact = "ckpt_step_00008 is generation 2's, the database has 1"
    assert stage.broken() == {"I6": fact}
