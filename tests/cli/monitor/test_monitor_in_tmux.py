"""The screen of `loom monitor` in a real terminal: drawn, steered, resized, left as it was."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..monitored import Plane, plane_in

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("tmux"),
]
COLOUR = re.compile(r"\x1b\[(?:[\d;]*;)?(?:[349][0-7]|[34]8;[\d;]+)m")


class Tmux:
    """One window of a size, with a server of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._is_open = False

    def __call__(self, *words: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", str(self._socket), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def start(self, size: tuple[int, int], *words: str, **env: str) -> None:
        sizes = ("-x", str(size[0]), "-y", str(size[1]))
        variables = [f"{name}={value}" for name, value in env.items()]
        shell = " ".join(
            ["env -u COLUMNS -u LINES", *variables, sys.executable, "-m", "torchloom", *words]
        )
        opening = ["respawn-pane", "-k"] if self._is_open else ["new-session", "-d", *sizes]
        self(*opening, f"{shell}; echo code $?; exec cat")
        self._is_open = True

    def keys(self, *keys: str) -> None:
        self("send-keys", *keys)

    def shows(self, pattern: str) -> None:
        """Wait until something is on the screen."""
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.screen(), re.MULTILINE):
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.screen()}"
            time.sleep(0.05)

    def screen(self, *words: str) -> str:
        return self("capture-pane", "-p", *words)


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        found.job("train-1", ranks=4)
        found.steps("train-1", 412, 412, 405, 411)
        found.log("train-1", "loss", *(3 / (n + 1) for n in range(50)))
        yield found


@pytest.fixture
def tmux(state: Path, tmp_path: Path) -> Iterator[Tmux]:
    with tempfile.TemporaryDirectory(prefix="loom-") as short:
        window = Tmux(Path(short) / "s")
        yield window
        subprocess.run(
            ["tmux", "-S", f"{short}/s", "kill-server"], capture_output=True, check=False
        )


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=str)
def test_the_screen_is_drawn_steers_and_leaves_the_terminal_as_it_was(
    size: tuple[int, int], plane: Plane, tmux: Tmux
) -> None:
    tmux.start(size, "monitor")
    tmux.shows(r"loss 0\.06 +rank 0 step 49")
    tmux.shows("p pause r resume s set d devices")
    lines = tmux.screen().splitlines()

    assert len(lines) == size[1]
    assert re.match(
        r" torchLoom  \S+ · 1 active · 4 ranks · 1 agents +epoch 1  [\d:]{8}$", lines[0]
    )
    ranks = [line for line in lines if re.match(r" +\d  up ", line)]
    assert [line.split()[:4] for line in ranks] == [
        ["0", "up", "412", "0"],
        ["1", "up", "412", "0"],
        ["2", "up", "405", "7"],
        ["3", "up", "411", "1"],
    ]
    assert len({line.index("node1") for line in ranks}) == 1
    tmux.keys(":", "set lr=0.03", "Enter")
    tmux.shows("lr 0.1 -> 0.03 at step 414 on ranks 0-3")
    assert [rank.applied[0][1:] for rank in plane.ranks["train-1"]] == [(414, 0.03)] * 4
    tmux.keys("q")
    tmux.shows("^code 0")
    assert (
        "loom: jobs keep running; `loom monitor train-1` returns to them"
        in tmux.screen().splitlines()
    )


def test_in_the_locale_c_the_screen_is_ascii_and_a_job_can_be_named(
    plane: Plane, tmux: Tmux
) -> None:
    tmux.start((80, 24), "monitor", "train-1", LANG="C", LC_ALL="C")
    tmux.shows(r"loss 0\.06 +rank 0 step 49")
    tmux.shows("p pause r resume s set d devices")
    lines = tmux.screen().splitlines()

    assert [line for line in lines if not line.isascii()] == []
    assert any(line.startswith("- jobs --") for line in lines), "what was a box is drawn, too"
    tmux.keys("q")
    tmux.shows("^code 0")


def test_without_colour_not_one_is_used_and_with_it_the_terminals_own(
    plane: Plane, tmux: Tmux
) -> None:
    tmux.start((80, 24), "monitor", NO_COLOR="1")
    tmux.shows("loss")
    bare = tmux.screen("-e")
    tmux.keys("q")
    tmux.shows("code 0")
    tmux.start((80, 24), "monitor")
    tmux.shows("loss")
    painted = tmux.screen("-e")

    assert not COLOUR.search(bare)
    assert (
        "\x1b[7m" in bare or "\x1b[1;7m" in bare or ";7m" in bare
    )  # the cursor is seen all the same
    assert COLOUR.search(painted)
    assert "38;2;" not in painted  # what dark and light terminals show is their own choice


def test_a_resized_window_is_drawn_anew(plane: Plane, tmux: Tmux) -> None:
    tmux.start((80, 24), "monitor")
    tmux.shows("loss")
    tmux("resize-window", "-x", "150", "-y", "40")

    tmux.shows("PID  DEVICES")
    tmux.shows(r"^ torchLoom .{120,}\d\d:\d\d:\d\d$")


def test_the_logs_are_lent_the_terminal_and_enter_brings_the_screen_back(
    plane: Plane, tmux: Tmux, ended: Any
) -> None:
    ended("train-1", logs=["a line of rank 0\n"])
    tmux.start((80, 24), "monitor")
    tmux.shows("loss")
    tmux.keys("l")
    tmux.shows("a line of rank 0")
    tmux.keys("Enter")

    tmux.shows("loss")
    tmux.keys("q")
    tmux.shows("code 0")
