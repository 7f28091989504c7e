"""Replicas under torchft: their steps are those that its Manager counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.progress_page import PageView
from torchloom.messages.plane import Applied, Metrics, Planned

from ..threadlet.conftest import Ranks
from ..threadlet.fake_agent import listening

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.needs("torchft")]
SCRIPT = str(Path(__file__).parent / "scripts" / "replica.py")
LATE = 6  # steps that rank 0 takes before rank 1 begins


def taken(ranks: Ranks, rank: int) -> list[Any]:
    """Return step, loss, whether it was committed and the replicas in it, by the program's file."""
    lines = (ranks.folder / f"steps-{rank}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def numbers(ranks: Ranks, rank: int, name: str) -> list[tuple[int, float]]:
    """Return step and value of each number that a rank has sent under a name."""
    return [
        (int(row[0]), float(row[metrics.names.index(name) + 2]))  # type: ignore[arg-type]
        for metrics in ranks.agent.of(Metrics, rank)
        for row in metrics.rows
        if name in metrics.names
    ]


def reached(ranks: Ranks, rank: int) -> int:
    """Return the last step of a rank's progress page."""
    view = PageView.open(ranks.folder / f"page-{rank}")
    assert view is not None
    return view.read().step


@pytest.mark.shows("torchft", "curve", "step")
def test_a_replica_that_heals_has_the_steps_of_the_others_and_their_lr(ranks: Ranks) -> None:
    ranks.agent.close()
    change = Planned("c3/1", 3, {"name": "lr", "value": 0.002, "before": {"lr": 0.01}}, True)
    with listening(ranks.agent.path, (change,)) as ranks.agent:
        said = ranks.run_and_close(SCRIPT, 2, FILES=str(ranks.folder), LOOM_ATTEMPT="1")

    first, second = (taken(ranks, rank) for rank in range(2))
    healed, *trained = second
    weights = [json.loads(text.splitlines()[-1]) for text in said]
    assert weights[0] == weights[1]  # also those of the step in which it healed
    assert {one.step for one in ranks.agent.of(Applied, 0)} == {3}
    assert healed[0] >= LATE
    assert numbers(ranks, 0, "loss") == [(step, loss) for step, loss, done, _ in first if done]
    assert numbers(ranks, 1, "loss") == [(step, loss) for step, loss, _, _ in trained]
    for rank, rows in enumerate((first, second)):
        several = [(step, count) for step, _, done, count in rows if done]
        assert numbers(ranks, rank, "torchft/participants") == several
        assert reached(ranks, rank) == rows[-1][0] + 1
    discarded = numbers(ranks, 0, "torchft/discarded")
    assert [step for step, _, done, _ in first if not done] == [4]
    assert discarded == [(step, float(step >= 4)) for step, _, done, _ in first if done]


def test_a_manager_that_the_user_skips_is_not_observed(ranks: Ranks) -> None:
    ranks.run_and_close(SCRIPT, FILES=str(ranks.folder), EVERY="3", LOOM_ATTACH_SKIP="torchft")

    assert numbers(ranks, 0, "torchft/participants") == []


def test_steps_between_two_quorums_are_those_of_the_optimizer(ranks: Ranks) -> None:
    ranks.run_and_close(SCRIPT, FILES=str(ranks.folder), EVERY="3")

    assert reached(ranks, 0) == 15
