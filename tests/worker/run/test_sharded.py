"""Shards without names are refused when the program is set up, never at its first checkpoint."""

import pytest

from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("wrap fsdp1", "the model"),
        ("wrap before", "model"),
        ("track zero", "optimizer"),
        ("track fsdp1", "ema"),
    ],
)
def test_sharded_state_is_refused_before_the_first_step(lives: Lives, how: str, what: str) -> None:
    ended = lives.start(2, script="sharded.py", how=how).result(timeout=180)

    assert [code for code, _ in ended] == [1, 1], ended
    assert all(f"ShardedState: {what} is sharded over the ranks" in text for _, text in ended)
    assert all("take FSDP2, by run.wrap(model, strategy=" in text for _, text in ended)
    assert lives.rows(2) == [[], []]


def test_a_sharded_loop_that_leaves_its_state_out_has_steps_and_metrics(lives: Lives) -> None:
    rows = lives.run(2, script="sharded.py", how="leave out")

    assert [[row["step"] for row in mine] for mine in rows] == [[0, 1, 2, 3]] * 2
    assert rows[0] == rows[1]
