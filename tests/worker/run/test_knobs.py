"""Values that were changed while a run went on are what they were when it is gone on with."""

import pytest

from torchloom.messages.plane import Applied, Goodbye, Planned

from ...harness.home import until
from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def test_a_changed_rate_keeps_the_shape_that_the_schedule_had_when_it_was_changed(
    lives: Lives,
) -> None:
    told = {"samples": 960, "epochs": 400, "checkpointing": {"every_n_steps": 25}}
    running = lives.start(1, **told)
    lives.agent.wait_for_boundaries(1, "lr")
    changes, steps = [], []
    for value in (0.2, 0.001, 0.1):
        (applied,) = lives.agent.set(1, "lr", value)
        payload = {"name": "lr", "value": value}
        changes.append(Planned(applied.command, applied.step, payload, done=True))
        steps.append(saved_behind(lives, applied.step))
    lives.agent.insist(1, "stop")
    assert running.result(timeout=180)[0][0] == 0
    lives.agent.wait(Goodbye)
    lives.commit()
    (whole,) = lives.rows(1)

    env = {"LOOM_UNTIL": len(whole)}
    found = [
        lives.run(1, resume=step, changes=tuple(changes), env=env, **told)[0] for step in steps
    ]

    assert found == [whole[step:] for step in steps]


def saved_behind(lives: Lives, step: int) -> int:
    """Wait for a checkpoint of a later step; return which."""

    def later() -> list[int]:
        return [one["step"] for one in lives.events("checkpoint_shard") if one["step"] > step]

    until(later)
    return later()[0]


def test_the_program_still_has_its_own_way_to_save(lives: Lives) -> None:
    running = lives.start(1, script="own.py")
    lives.agent.wait_for_boundaries(1)

    command, at = lives.agent.insist(1, "checkpoint")
    lives.agent.wait(Applied, command=command)
    lives.agent.insist(1, "stop")
    running.result(timeout=180)

    assert lives.rows(1) == [[{"saved": at}]]
    assert not lives.root.exists()
