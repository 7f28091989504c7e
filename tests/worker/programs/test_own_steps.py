"""A program that resumes at its step N has step N here, with the changes made before."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.progress_page import PageView
from torchloom.messages.plane import Applied, Metrics, Planned

from ..threadlet.conftest import Ranks
from ..threadlet.fake_agent import listening

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPT = str(Path(__file__).parent / "scripts" / "resumed.py")
CHANGES = (  # what a former process did at its steps 10 and 20 of a cosine, and what used before
    {"name": "lr", "value": 0.01},
    {"name": "lr", "value": 0.002},
)
AT = (10, 20)


def rows(ranks: Ranks) -> list[tuple[int, float, float]]:
    """Return step, own lr and used lr of each step, by the program's own file."""
    lines = (ranks.folder / "rank-0").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def expected(own: dict[int, float]) -> dict[int, float]:
    """Return the lr that the changes make of the program's own, step by step."""
    first = {step: lr if step < AT[0] else 0.01 * (lr / own[AT[0]]) for step, lr in own.items()}
    last = {step: 0.002 * (lr / own[AT[1]]) for step, lr in own.items() if step >= AT[1]}
    return first | last


def lost(ranks: Ranks, **env: str) -> tuple[Planned, ...]:
    """Run a first process to its end; return the changes as a weaver would send them."""
    ranks.run(SCRIPT, attach=False, PLACE=str(ranks.folder / "place"), **env)
    own = {step: lr for step, lr, _ in rows(ranks)}
    used = {AT[0]: own[AT[0]], AT[1]: 0.01 * (own[AT[1]] / own[AT[0]])}
    return tuple(
        Planned(f"c{at}/1", at, {**payload, "before": {"lr": used[at]}}, True)
        for at, payload in zip(AT, CHANGES, strict=True)
    )


@pytest.mark.parametrize(
    "env",
    [{"OPTIMIZER": "AdamW"}, {"OPTIMIZER": "SGD", "NAMED": "1"}],
    ids=["state of the optimizer", "run.step"],
)
def test_changes_of_a_former_process_are_in_force_from_the_first_step(
    ranks: Ranks, env: dict[str, Any]
) -> None:
    changes = lost(ranks, STEPS="30", **env)
    ranks.agent.close()

    with listening(ranks.agent.path, changes) as agent:
        ranks.run(SCRIPT, LOOM_ATTEMPT="1", STEPS="60", PLACE=str(ranks.folder / "place"), **env)

    found = rows(ranks)
    wanted = expected({step: own for step, own, _ in found})
    late = [(step, used) for step, _, used in found if step >= 30]
    assert [step for step, _ in late] == list(range(30, 60))
    assert [used for _, used in late] == pytest.approx([wanted[step] for step, _ in late], 1e-9)
    assert {one.step for one in agent.of(Applied)} == {30}


@pytest.mark.shows("Plain loop", "step")
def test_the_steps_of_a_resumed_program_are_its_own(ranks: Ranks) -> None:
    place = str(ranks.folder / "place")
    ranks.run(SCRIPT, attach=False, STEPS="30", PLACE=place)

    ranks.run_and_close(SCRIPT, STEPS="50", PLACE=place)

    losses = [row for one in ranks.agent.of(Metrics) if "loss" in one.names for row in one.rows]
    view = PageView.open(ranks.folder / "page-0")
    assert view is not None
    assert [row[0] for row in losses] == list(range(30, 50))
    assert view.read().step == 50


def test_a_program_that_names_its_steps_has_them_whatever_its_optimizer_counts(
    ranks: Ranks,
) -> None:
    place = str(ranks.folder / "place")
    ranks.run(SCRIPT, attach=False, STEPS="30", PLACE=place, OPTIMIZER="SGD")

    ranks.run_and_close(SCRIPT, STEPS="40", PLACE=place, OPTIMIZER="SGD", NAMED="1")

    view = PageView.open(ranks.folder / "page-0")
    assert view is not None
    assert view.read().step == 39  # it named the last step, and not the end of it
