"""`loom resume` of a run without a checkpoint: asked on a terminal, refused where nobody can be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process
SCRIPT = """
import os, pathlib, sys
starts = pathlib.Path(os.environ["STARTS"])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def run(loom: Any, tmp_path: Path) -> Callable[[int], tuple[str, Path]]:
    """Run a program that saves nothing to its end; return its id and the file it counts in."""

    def start(code: int) -> tuple[str, Path]:
        script, starts = tmp_path / "count.py", tmp_path / "starts"
        script.write_text(SCRIPT)
        loom("run", "-n", "1", "-e", f"STARTS={starts}", "-e", f"CODE={code}", str(script))
        assert starts.read_text() == "x"
        return loom.ids()[0], starts

    return start


def test_without_a_checkpoint_a_run_starts_over_only_if_that_was_said(
    loom: Any, run: Callable[[int], tuple[str, Path]]
) -> None:
    job, starts = run(3)

    refused = loom("resume", job)
    assert (refused.returncode, starts.read_text()) == (2, "x")
    assert b"resuming would start over; give --from-scratch" in refused.stderr

    again = loom("resume", "--from-scratch", job)
    assert (again.returncode, starts.read_text()) == (3, "xx")


def test_on_a_terminal_it_is_asked_and_no_is_an_answer(
    loom: Any, on_terminal: Any, run: Callable[[int], tuple[str, Path]]
) -> None:
    job, starts = run(3)

    for answer, code, count in ((b"n\n", 130, "x"), (b"y\n", 3, "xx")):
        terminal = on_terminal("resume", job)
        terminal.expect(b"resuming would start over. Start over? [y/N]: ")
        terminal.send(answer)
        assert (terminal.wait(), starts.read_text()) == (code, count)


def test_a_run_that_is_complete_is_not_resumed_without_a_word_on_how_far(
    loom: Any, run: Callable[[int], tuple[str, Path]]
) -> None:
    job, starts = run(0)

    for words in ((), ("--from-scratch",)):
        refused = loom("resume", *words, job)
        assert (refused.returncode, starts.read_text()) == (2, "x")
        assert b"is COMPLETED: nothing is left to resume; --until STEP" in refused.stderr

    again = loom("resume", "--from-scratch", "--until", "9", job)
    assert (again.returncode, starts.read_text()) == (0, "xx")
