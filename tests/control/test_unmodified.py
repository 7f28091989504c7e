"""Programs that know nothing of torchloom: counted right, changed at one step, to the last bit."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..harness.forked_ranks import Zygote, free_port, seats
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Job, Row

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
KINDS = ("plain", "amp", "accumulation", "two", "subclass", "cosine", "onecycle")


def written_in(plain: Zygote, kind: str, outcome: dict[str, Any], out: Path) -> list[list[Row]]:
    """Run the program in plain torch with the change written into it; return its ranks' rows."""
    out.mkdir()
    change = json.dumps([outcome["effective_step"], outcome["after"]])
    told = seats(WORLD, free_port(), OUT=str(out), KIND=kind, CHANGE=change)
    ended = plain.run((SCRIPTS / "kinds.py").read_text(), told, install=False)
    assert [code for code, _ in ended] == [0] * WORLD, ended
    texts = [(out / f"rank-{rank}").read_text().splitlines()[1:] for rank in range(WORLD)]
    return [[Row(*json.loads(line)) for line in lines] for lines in texts]


def end_of(job: Job, leave: Path) -> tuple[list[int], list[int]]:
    """Return the steps that the ranks counted themselves, and those that the plane shows."""
    paths = [job.out / f"taken-{rank}" for rank in range(WORLD)]
    until(lambda: all(path.exists() and path.read_text() for path in paths), PATIENCE)
    taken = [int(path.read_text()) for path in paths]
    shown: list[int] = []

    def is_right() -> bool:
        shown[:] = [rank["step"] for rank in door.ask("ranks", job=job.id)]
        return shown == taken

    with contextlib.suppress(AssertionError):  # the caller compares
        until(is_right, PATIENCE / 2)
    leave.touch()
    job.gone()
    return taken, shown


@pytest.mark.parametrize("kind", KINDS)
def test_an_unmodified_program_is_changed_at_one_step_as_if_it_were_written_in(
    start: Callable[..., Job], plain: Zygote, tmp_path: Path, kind: str
) -> None:
    leave = tmp_path / "leave"
    job = start("kinds.py", WORLD, KIND=kind, PAUSE=0.01, LEAVE=leave).ready()

    outcome = job.set({"lr": 0.02})
    taken, shown = end_of(job, leave)

    expected = written_in(plain, kind, outcome, tmp_path / "plain")
    found = [job.rows(rank) for rank in range(WORLD)]
    assert shown == taken
    assert [[(row.step, row.used, row.digest) for row in rows] for rows in found] == [
        [(row.step, row.used, row.digest) for row in rows] for rows in expected
    ]
    assert outcome["effective_step"] < taken[0] - 1
