"""The checks of ledgers see what they are for; a ledger that is as it should be passes them."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from ..harness import step_records as ledgers
from ..harness.step_records import Life, Line

WORLD, STEPS = 2, 4


def quiet() -> list[list[Life]]:
    """Return what two ranks write that see eight samples in two epochs."""

    def line(rank: int, step: int) -> Line:
        samples = (step % 2 * 2 + rank,)
        return Line(0, step, (f"bits {step}", f"own {rank}"), step // 2, samples, 0.1, 10.0 + step)

    return [
        [Life((rank, rank, f"token {rank}"), "0", 1.0, [line(rank, at) for at in range(STEPS)])]
        for rank in range(WORLD)
    ]


def hurt() -> list[list[Life]]:
    """Return what they write if rank 1 dies in step 2 and the others do not."""
    ranks = quiet()
    old = ranks[1][0].lines
    again = [replace(line, generation=1) for line in old[2:]]
    ranks[0][0].lines[2:] = [replace(line, generation=1) for line in ranks[0][0].lines[2:]]
    ranks[1] = [replace(ranks[1][0], lines=old[:2]), Life((9, 9, "new"), "0", 11.5, again)]
    return ranks


EXPECTED = [ledgers.chain(lives) for lives in quiet()]


def check(ranks: list[list[Life]]) -> None:
    ledgers.one_attempt(ranks)
    ledgers.same_steps(ranks, EXPECTED)
    ledgers.each_sample_once(ranks, EXPECTED, 4, 2)
    ledgers.survivors_survived(ranks, {1: 1})
    ledgers.generations_grew(ranks, 1, 1)
    ledgers.nothing_lost(ranks)


def other_bits(ranks: list[list[Life]]) -> None:
    ranks[0][0].lines[3] = replace(ranks[0][0].lines[3], bits=("other", "own 0"))


def other_bits_of_its_own(ranks: list[list[Life]]) -> None:
    ranks[1][1].lines[1] = replace(ranks[1][1].lines[1], bits=("bits 3", "own 0"))


def torn(ranks: list[list[Life]]) -> None:
    """Let rank 1 die when all others have applied the step that it is in."""
    ranks[0][0].lines[2] = replace(ranks[0][0].lines[2], generation=0)
    del ranks[1][1].lines[0]


def a_step_less_without_a_death(ranks: list[list[Life]]) -> None:
    del ranks[0][0].lines[2]


def another_sample(ranks: list[list[Life]]) -> None:
    ranks[1][1].lines[0] = replace(ranks[1][1].lines[0], samples=(0,))


def a_survivor_that_died(ranks: list[list[Life]]) -> None:
    ranks[0].append(Life((8, 8, "late"), "0", 12.5, [ranks[0][0].lines.pop()]))


def another_attempt(ranks: list[list[Life]]) -> None:
    ranks[1][1] = replace(ranks[1][1], attempt="1")


def a_generation_of_its_own(ranks: list[list[Life]]) -> None:
    ranks[0][0].lines[3] = replace(ranks[0][0].lines[3], generation=3)


def steps_done_again(ranks: list[list[Life]]) -> None:
    ranks[1][1].lines.insert(0, replace(ranks[1][0].lines[0], generation=1, time=12.0))


def a_step_that_nobody_did(ranks: list[list[Life]]) -> None:
    torn(ranks)
    del ranks[0][0].lines[2]


WRONGS = [
    a_step_that_nobody_did,
    other_bits,
    other_bits_of_its_own,
    a_step_less_without_a_death,
    another_sample,
    a_survivor_that_died,
    another_attempt,
    a_generation_of_its_own,
    steps_done_again,
]


def test_a_run_that_was_recovered_as_it_should_be_passes() -> None:
    check(hurt())


def test_a_rank_may_get_the_step_that_it_died_in_from_others() -> None:
    ranks = deepcopy(hurt())

    torn(ranks)

    check(ranks)


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_run_with_something_wrong_does_not_pass(
    wrong: Callable[[list[list[Life]]], None],
) -> None:
    ranks = deepcopy(hurt())

    wrong(ranks)

    with pytest.raises(AssertionError):
        check(ranks)


def test_a_process_that_became_another_is_noticed(tmp_path: Path) -> None:
    own = {"pid": 1, "started": 2, "token": "a", "attempt": "0", "time": 0.0}
    line = {"generation": 0, "step": 0, "digest": "", "own": "", "epoch": 0, "samples": []}
    told = [own | {"main": "__main__"}, own | line | {"rate": 0.1, "token": "b"}]
    (tmp_path / "rank-0").write_text("".join(json.dumps(one) + "\n" for one in told))

    with pytest.raises(AssertionError, match="a process became another"):
        ledgers.read(tmp_path, 0)
