"""A rank that dies takes nothing with it of what it had not sent yet: the bits are the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from ..harness.live_training import STEPS, Proof
from ..harness.plane_jobs import Plane
from ..harness.step_records import same

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
MIDDLE = STEPS // 2
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("mlp", {"algorithm": "topk", "k": 0.05}, "behind"),
    ("cnn", {"algorithm": "onebit", "warmup_steps": 4}, "allreduce"),
    ("mlp", {"algorithm": "powersgd", "warmup_steps": 4}, "behind"),
    ("gpt", {"algorithm": "int8", "block": 64}, "ahead"),
]


@pytest.mark.parametrize(("model", "given", "where"), CASES, ids=lambda one: str(one)[:30])
def test_a_killed_rank_is_replaced_with_what_it_had_not_sent(
    plane: Plane, warm: None, tmp_path: Path, model: str, given: dict[str, Any], where: str
) -> None:
    env = {"COMPRESSION": json.dumps(given)}
    quiet = Proof(model, tmp_path / "quiet", policy="restart", pace=0, **env)
    quiet.over()

    proof = Proof(model, tmp_path / "hurt", [f"1:{MIDDLE}:{where}:SIGKILL"], pace=0, **env)

    proof.holds(quiet.chains())
    assert not proof.events("compression_lost")


@pytest.mark.parametrize(
    ("model", "given", "policy"),
    [
        ("cnn", {"algorithm": "topk", "k": 0.05}, "restart"),
        ("mlp", {"sync_every": 3}, ""),  # live would be wrong: weights differ
    ],
    ids=["topk", "local"],
)
def test_a_restart_after_a_kill_ends_with_the_same_bits(
    plane: Plane, warm: None, tmp_path: Path, model: str, given: dict[str, Any], policy: str
) -> None:
    env = {"COMPRESSION": json.dumps(given)}
    quiet = Proof(model, tmp_path / "quiet", policy="restart", pace=0, **env)
    quiet.over()

    hit = f"1:{MIDDLE}:after:SIGKILL"
    proof = Proof(model, tmp_path / "hurt", [hit], policy=policy, watched=False, pace=0.02, **env)
    proof.over()

    assert proof.was_hit()
    assert {life.attempt for lives in proof.ranks() for life in lives} == {"0", "1"}
    for mine, other in zip(proof.chains(), quiet.chains(), strict=True):
        assert mine.keys() == other.keys()
        assert all(same(mine[step], other[step]) for step in other)
