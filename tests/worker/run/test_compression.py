"""A run that compresses gradients resumes with what each rank had not sent yet."""

import json
from typing import Any

import pytest

from torchloom.specs.jobspec_shape import K_KNOB

from ...harness.home import until
from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
EVERY: dict[str, Any] = {"every_n_steps": 4}
TOLD: dict[str, Any] = {"samples": 72, "epochs": 1}
BUCKETS = {"bucket_cap_mb": 0.001}  # several


def options(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"compression": {"algorithm": algorithm, **more}, **BUCKETS}


@pytest.mark.parametrize(
    ("given", "optimizer"),
    [
        (options("topk", k=0.1), "sgd"),
        (options("int8", block=32), "adamw"),
        (options("onebit", warmup_steps=3), "adamw"),
        (options("powersgd", warmup_steps=3), "sgd"),
    ],
    ids=lambda given: given if isinstance(given, str) else given["compression"]["algorithm"],
)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(
    lives: Lives, given: dict[str, Any], optimizer: str
) -> None:
    told = {**TOLD, "options": given, "optimizer": optimizer}
    whole = lives.run(2, **told)
    lives.run(2, checkpointing=EVERY, env={"LOOM_UNTIL": 6}, **told)

    again = lives.run(2, resume=4, checkpointing=EVERY, **told)

    assert len(again[0]) == 5
    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert [one["exact"] for one in lives.events("restored")] == [True, True]


def test_a_run_resumed_without_its_compression_is_not_exact(lives: Lives) -> None:
    lives.run(2, checkpointing=EVERY, options=options("topk"), env={"LOOM_UNTIL": 6}, **TOLD)

    lives.run(2, resume=4, checkpointing=EVERY, **TOLD)

    whys = {one["why"] for one in lives.events("restored")}
    assert whys == {"compression is switched on or off"}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"algorithm": "fp16"},
    "bf16": {"algorithm": "bf16"},
    "powersgd": {"algorithm": "powersgd", "rank": 2},
    "topk": {"algorithm": "topk", "k": 0.1},
    "onebit": {"algorithm": "onebit", "warmup_steps": 10},
    "int8": {"algorithm": "int8"},
    "plain adam": {},
    "onebit adam": {"algorithm": "onebit", "warmup_steps": 40},
}
NEAR = {"fp16": 1.01, "bf16": 1.02, "int8": 1.02}  # times the loss of plain DDP; else twice


@pytest.mark.parametrize("world", [2, 4])
def test_each_algorithm_trains_to_a_loss_near_that_of_plain_ddp(lives: Lives, world: int) -> None:
    ended = lives.start(world, "compressed.py", cases=CASES, steps=150).result(timeout=180)

    assert [code for code, _ in ended] == [0] * world, ended
    found = json.loads(ended[0][1].splitlines()[-1])
    assert [name for name, one in found.items() if not one["alike"]] == []
    for name, one in found.items():
        plain = found["plain adam" if name.endswith("adam") else "plain"]["loss"]
        assert one["loss"] < 0.3  # it was 1.4
        assert one["loss"] <= plain * NEAR.get(name, 2.0), (name, one["loss"], plain)


def test_the_share_of_topk_changes_on_all_ranks_at_the_step_that_is_reported(
    lives: Lives,
) -> None:
    told = {"samples": 960, "epochs": 200, "options": options("topk", k=0.05)}
    running = lives.start(2, **told)
    lives.agent.wait_for_boundaries(2, K_KNOB)
    applied = lives.agent.set(2, K_KNOB, 0.5)
    until(lambda: len(lives.rows(2)[1]) > applied[0].step + 2)
    lives.agent.insist(2, "stop")
    assert [code for code, _ in running.result(timeout=180)] == [0, 0]
    changed = lives.rows(2)
    at = applied[0].step

    quiet = lives.run(2, env={"LOOM_UNTIL": at + 2}, **told)

    assert {(one.step, one.before, one.after) for one in applied} == {(at, 0.05, 0.5)}
    for mine, other in zip(changed, quiet, strict=True):
        assert mine[:at] == other[:at]
        assert mine[at]["digest"] != other[at]["digest"]
