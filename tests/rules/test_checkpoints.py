"""Shards as ranks tell of them: what fits counts once, whatever its order; the rest is nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.rules.checkpoints import Collected, WrittenShard, is_due, knob_position, shard_of
from torchloom.rules.control.command import Command, CommandEntry, CommandKind, Status

HASH = "blake3:" + "ab" * 32


def said(rank: int = 0, **more: Any) -> dict[str, Any]:
    facts = {"step": 100, "generation": 3, "attempt": 1, "rank": rank, "world_size": 4}
    return {**facts, "name": f"worker_{rank}.pt", "size": 10 + rank, "hash": HASH, **more}


def shard(rank: int, **more: Any) -> WrittenShard:
    found = shard_of(said(rank, **more), rank, 3)
    assert found is not None
    return found


def test_a_shard_is_read_with_what_a_manifest_can_hold() -> None:
    more = {
        "epoch": 2,
        "strategy": "ddp",
        "backend": "gloo",
        "trigger": "every_n_steps",
        "optimizer_state": True,
        "rng_state": 1,
        "versions": {"torch": "2.13", "python": "3.11\n"},
        "metrics": {"loss": 0.25, "bad": float("nan"), "flag": True, "word": "x", "steps": 3},
        "seconds": 1.5,
    }

    assert shard_of(said(2, **more), 2, 3) == WrittenShard(
        100,
        3,
        1,
        2,
        4,
        12,
        HASH,
        {
            "strategy": "ddp",
            "backend": "gloo",
            "trigger": "every_n_steps",
            "optimizer_state": True,
            "rng_state": False,
            "epoch": 2,
            "not_finite": False,
            "versions": {"torch": "2.13", "python": "3.11"},
            "metrics": {"loss": 0.25, "steps": 3.0},
        },
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 1},
        {"generation": 2},
        {"name": "../worker_0.pt"},
        {"name": "worker_00.pt"},
        {"hash": "md5:" + "0" * 32},
        {"hash": HASH + "\n"},
        {"size": -1},
        {"size": 1 << 60},
        {"size": True},
        {"step": "100"},
        {"world_size": 0},
        {"world_size": 1 << 40},
        {"attempt": None},
    ],
)
def test_what_is_no_shard_of_this_rank_is_nothing(wrong: dict[str, Any]) -> None:
    assert shard_of({**said(0), **wrong}, 0, 3) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(said(0, metrics=0, versions=0, epoch=0))), JSON))
def test_whatever_a_rank_says_is_read_or_left(words: dict[str, Any]) -> None:
    found = shard_of({**said(0), **words}, 0, 3)

    if found is not None:
        json.dumps(found.facts, allow_nan=False)


@given(st.permutations([0, 0, 1, 2, 2, 3, 3]))
def test_shards_in_any_order_and_twice_make_one_whole(order: list[int]) -> None:
    collected = Collected()
    for place, rank in enumerate(order):
        assert not collected.is_whole or {0, 1, 2, 3} <= set(order[:place])
        taken = collected.take(shard(rank, epoch=rank + 1))
        assert taken is not None
        collected = taken

    assert collected.is_whole
    assert (collected.size, collected.lowest, collected.facts["epoch"]) == (46, 0, 1)
    assert Collected.from_dict(json.loads(json.dumps(collected.to_dict()))) == collected


def test_a_rank_that_failed_ends_the_hope_until_it_writes_after_all() -> None:
    first = Collected().take(shard(0))
    assert first is not None

    failed = first.fail(1, "no space").fail(0, "it is there already")
    again = failed.take(shard(1))

    assert (first.why, failed.why) == ("", "rank 1: no space")
    assert again is not None
    assert again.why == ""


def test_a_shard_of_another_number_of_ranks_does_not_belong() -> None:
    first = Collected().take(shard(0))
    assert first is not None

    assert first.take(shard(1, world_size=8)) is None


def test_the_place_in_the_log_is_the_last_knob_that_acted_by_the_step() -> None:
    def entry(number: int, kind: CommandKind, status: Status, step: int | None) -> CommandEntry:
        return CommandEntry(Command(f"c{number}", kind, {}), number, status, step=step)

    entries = [
        entry(1, CommandKind.KNOB, Status.APPLIED, 10),
        entry(2, CommandKind.PAUSE, Status.APPLIED, 12),
        entry(3, CommandKind.KNOB, Status.ABORTED, 13),
        entry(4, CommandKind.KNOB, Status.COMMITTED, 20),
        entry(5, CommandKind.KNOB, Status.PREPARING, None),
    ]

    assert [knob_position(entries, step) for step in (9, 10, 19, 20)] == [0, 1, 1, 4]


def test_every_so_many_seconds_is_a_number_above_zero() -> None:
    wanted = (10, 10.5, 0, None, True, "5")

    assert [is_due(every, [90], 100) for every in wanted] == [True, *[False] * 5]


def test_a_checkpoint_is_due_an_interval_behind_the_last_or_when_the_clock_was_set_back() -> None:
    cases = ([], [80, 90], [80, 91], [109], [110], [3700], [3700, 99])

    assert [is_due(10, times, 100) for times in cases] == [
        *(True, True, False),
        *(False, True, True, False),
    ]
