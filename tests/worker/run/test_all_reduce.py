"""How ranks of several hosts add up is measured once; it is part of the run."""

from typing import Any

import pytest

from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
EVERY: dict[str, Any] = {"every_n_steps": 4}
HOSTS = {rank: {"LOOM_NODE": "ab"[rank // 2], "LOCAL_WORLD_SIZE": "2"} for rank in range(4)}
TOLD: dict[str, Any] = {"samples": 144, "epochs": 1, "each": HOSTS}


def test_the_way_is_reported_at_the_first_start_and_kept_by_a_restart(lives: Lives) -> None:
    whole = lives.run(4, checkpointing=EVERY, **TOLD)
    (chosen,) = lives.events("all_reduce")
    assert (chosen["hosts"], chosen["ranks"]) == (2, 4)
    assert chosen["way"] == min(("flat", "hierarchical"), key=lambda way: chosen[f"{way}_ms"])
    assert lives.storage.manifest(4).versions["all_reduce"] == chosen["way"]

    again = lives.run(4, resume=4, checkpointing=EVERY, **TOLD)

    assert lives.events("all_reduce") == []
    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert lives.storage.manifest(8).versions["all_reduce"] == chosen["way"]


def test_another_number_of_ranks_measures_again_and_says_so(lives: Lives) -> None:
    lives.run(4, checkpointing=EVERY, env={"LOOM_UNTIL": 6}, **TOLD)
    (before,) = lives.events("all_reduce")

    two = {rank: {"LOOM_NODE": "ab"[rank // 2], "LOCAL_WORLD_SIZE": "2"} for rank in range(3)}
    lives.run(3, resume=4, checkpointing=EVERY, **{**TOLD, "each": two})

    (after,) = lives.events("all_reduce")
    assert (before["ranks"], after["ranks"], after["way"]) == (4, 3, "flat")  # uneven hosts
    assert after["why"] == "not bit-exact: all-reduce of 4 ranks was planned, these are 3"
