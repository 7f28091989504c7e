"""Ranks that exchange weights every so many steps, judged by plain torch's Nesterov momentum."""

import json
from typing import Any

import pytest

from torchloom.specs.jobspec_shape import SYNC_KNOB

from ...harness.home import until
from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
EVERY: dict[str, Any] = {"every_n_steps": 4}
TOLD: dict[str, Any] = {"samples": 72, "epochs": 1}
LOCAL = {"compression": {"sync_every": 3}}


@pytest.mark.parametrize(("world", "optimizer"), [(2, "sgd"), (4, "adamw")])
def test_ranks_end_with_the_weights_that_plain_torch_computes(
    lives: Lives, world: int, optimizer: str
) -> None:
    told = {"every": 5, "steps": 42, "optimizer": optimizer}

    ended = lives.start(world, "local.py", **told).result(timeout=180)

    assert [code for code, _ in ended] == [0] * world, ended
    for _, text in ended:
        found = json.loads(text.splitlines()[-1])
        assert found["gap"] < 1e-5, found


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_resumed_between_two_exchanges_has_the_same_bits(
    lives: Lives, optimizer: str
) -> None:
    told = {**TOLD, "options": LOCAL, "optimizer": optimizer}
    whole = lives.run(2, **told)
    lives.run(2, checkpointing=EVERY, env={"LOOM_UNTIL": 6}, **told)

    again = lives.run(2, resume=4, checkpointing=EVERY, **told)

    assert whole[0][4]["digest"] != whole[1][4]["digest"]  # each has its own weights there
    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert [one["exact"] for one in lives.events("restored")] == [True, True]


def test_the_steps_between_two_exchanges_change_on_all_ranks_at_one_step(lives: Lives) -> None:
    told = {"samples": 9600, "epochs": 200, "options": {"compression": {"sync_every": 1000}}}
    running = lives.start(2, **told)
    lives.agent.wait_for_boundaries(2, SYNC_KNOB)
    applied = lives.agent.set(2, SYNC_KNOB, 1)
    until(lambda: len(lives.rows(2)[1]) > applied[0].step + 2)
    lives.agent.insist(2, "stop")
    assert [code for code, _ in running.result(timeout=180)] == [0, 0]
    changed, at = lives.rows(2), applied[0].step

    quiet = lives.run(2, env={"LOOM_UNTIL": at + 1}, **told)

    assert {(one.step, one.before, one.after) for one in applied} == {(at, 1000, 1)}
    for mine, other in zip(changed, quiet, strict=True):
        assert mine[:at] == other[:at]
        assert mine[at]["digest"] != other[at]["digest"]
