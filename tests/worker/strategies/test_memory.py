"""FSDP divides what a rank holds; the kernel's own count is the judge."""

import json
import statistics
from pathlib import Path

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats
from .conftest import SCRIPTS

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 4
PER_WEIGHT = 4  # the weight, its gradient and two moments of Adam


def test_a_rank_holds_its_share_and_no_more_than_under_plain_fsdp(
    zygote: Zygote, tmp_path: Path
) -> None:
    def rows(how: str, world: int) -> list[dict[str, int]]:
        env = {"OUT": str(tmp_path), "HOW": how}
        script = (SCRIPTS / "memory.py").read_text()
        ended = zygote.run(script, seats(world, free_port(), **env), install=False)
        assert [code for code, _ in ended] == [0] * world, ended
        return [json.loads((tmp_path / f"{how}-{rank}").read_text()) for rank in range(world)]

    (whole,) = rows("whole", 1)
    plain = rows("plain", WORLD)
    ours = rows("fsdp", WORLD)

    assert whole["taken"] >= whole["held"] == PER_WEIGHT * whole["model"]
    assert [row["held"] for row in ours] == [row["held"] for row in plain]
    assert [row["held"] for row in ours] == [whole["held"] // WORLD] * WORLD
    # A quarter, and the layers that are gathered just now.
    assert statistics.median(row["taken"] for row in ours) <= 0.4 * whole["taken"]
