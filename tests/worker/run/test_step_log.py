"""Each rank's own book of its steps: complete, in order, and the same for two lives of a run."""

import json
from typing import Any

import pytest

from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
STEPS = 24
BITS = ("digest", "state", "own", "samples", "chance")


def book(lives: Lives, folder: str, rank: int, **more: Any) -> list[dict[str, Any]]:
    """Run two ranks and return what one of them wrote."""
    path = lives.folder / folder
    lives.run(2, env={"LOOM_LEDGER": str(path), **more.pop("env", {})}, **more)
    return [json.loads(line) for line in (path / f"rank_{rank}.jsonl").read_text().splitlines()]


def bits(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [(row["step"], *(row[name] for name in names)) for row in rows]


def test_a_life_that_goes_on_writes_what_an_undisturbed_one_would(lives: Lives) -> None:
    whole = book(lives, "whole", 1)
    first = book(lives, "first", 1, checkpointing={"every_n_steps": 8}, env={"LOOM_UNTIL": 10})
    again = book(lives, "again", 1, resume=8)

    assert [(row["step"], row["kind"]) for row in whole] == [
        (-1, "joined"),
        *((step, "applied") for step in range(STEPS)),
    ]
    assert [(row["step"], row["kind"]) for row in again[:2]] == [(7, "joined"), (8, "applied")]
    assert bits(first, *BITS) == bits(whole, *BITS)[:11]
    assert bits(again[1:], *BITS) == bits(whole, *BITS)[9:]
    assert bits(again[:1], *BITS[:3]) == bits(whole, *BITS[:3])[8:9]
    assert {row["incarnation"] for row in whole}.isdisjoint(row["incarnation"] for row in again)
    assert {row["generation"] for row in again} == {2}


def test_ranks_share_parameters_and_not_their_samples(lives: Lives) -> None:
    one = book(lives, "both", 1)
    lines = (lives.folder / "both" / "rank_0.jsonl").read_text().splitlines()
    other = [json.loads(line) for line in lines]

    assert bits(one, "digest", "state") == bits(other, "digest", "state")
    seen = [row["samples"] for row in (*one, *other) if row["kind"] == "applied"]
    assert len(set(seen)) == 2 * STEPS


def test_without_the_variable_nothing_is_written(lives: Lives) -> None:
    lives.run(1)

    assert list(lives.folder.rglob("rank_*.jsonl")) == []
