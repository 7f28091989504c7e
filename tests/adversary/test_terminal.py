"""Text of a job on a real terminal: what a rank says, names and raises must not steer it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.cli.output import for_terminal, printable, visible

from ..cli.conftest import Loom, Terminal, loom, on_terminal, state, until

__all__ = ["loom", "on_terminal", "state"]

CORPUS = {
    "clear the screen": "\x1b[2J\x1b[H",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "link": "\x1b]8;;http://192.0.2.1/\x1b\\click\x1b]8;;\x1b\\",
    "title": "\x1b]0;evil\x07",
    "C1 control sequence": "\x9b2J",
    "C1 operating system command": "\x9d0;evil\x9c",
    "answers as if typed": "\x1b[6n\x1bP$q\x1b\\",
    "bidi override": "\u202eevil\u2066",
    "NUL and bell": "\x00\x07\x08",
    "hidden text": "\x1b[8mevil\x1b[38;5;8;8mevil",
    "another line": "\rloom: ok\u2028loom: ok\x0bloom: ok\x85",
}
ALL = "".join(CORPUS.values())
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
RANK = """
import sys, time
import torchloom

evil = EVIL
run = torchloom.init(project="p")
run.tags = ("tag" + evil,)
run.notes = "note" + evil + "\\nFORGED"
for name in ("metric" + evil, "metric\\nFORGED", "[red]metric[/red]", "[link=http://x]m"):
    try:
        run.log({name: 1.0})
    except ValueError:
        run.log(loss=1.0)
try:
    run.knob("knob" + evil + "\\nFORGED", 1.0)
except ValueError:
    pass
print("out" + evil, flush=True)
print("err" + evil, file=sys.stderr, flush=True)
raise RuntimeError("raised" + evil + "\\nFORGED in an error")
"""


def steering(screen: bytes) -> list[bytes]:
    """Return what a screen got besides text, lines and colours that hide nothing."""
    left = COLOUR.sub(b"", screen).replace(b"\r\n", b"\n")
    text = left.decode("utf-8", "surrogateescape")
    return [char.encode("utf-8", "surrogateescape") for char in text if not _is_text(char)]


def _is_text(char: str) -> bool:
    return char.isprintable() or char in "\n\t"


@pytest.mark.parametrize("what", CORPUS)
def test_no_control_is_left_in_text_for_a_terminal(what: str) -> None:
    text = f"before{CORPUS[what]}after"

    for shown in (for_terminal(text), visible(text)):
        assert steering(shown.encode()) == []
        assert "\x1b[8" not in shown
        assert shown.startswith("before")
        assert shown.endswith("after")
    assert printable(text).isprintable()


def test_colours_and_lines_of_ours_are_left() -> None:
    text = "\x1b[32mgood\x1b[0m\tcell\r\n\x1b[1;38;5;8mgrey\x1b[m\n"

    assert for_terminal(text) == text


@pytest.fixture
def planed(loom: Loom, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loom]:
    """The command, with a plane that is ended afterwards."""
    monkeypatch.setenv("LOOM_PLANE", "1")
    assert loom("up").returncode == 0
    yield loom
    loom("down")


@pytest.mark.process
@pytest.mark.needs("torch")
def test_no_verb_passes_on_what_a_rank_made_up(
    planed: Loom, on_terminal: Callable[..., Terminal]
) -> None:
    loom = planed
    Path("rank.py").write_text(RANK.replace("EVIL", repr(ALL)))
    failed = loom("run", "rank.py")
    assert failed.returncode != 0
    (job,) = loom.ids()
    until(lambda: loom("plot", job).returncode == 0, "its metrics")
    assert (
        b"\x1b]52"
        in (loom.home / "runs" / job / "logs").rglob("stderr.log").__next__().read_bytes()
    )

    verbs = [
        ["ls"],
        ["ls", "--all"],
        ["show", job],
        ["show", job, "--events"],
        ["show", job, "--spec"],
        ["plot", job],
        ["compare", job, job],
        ["logs", job],
        ["logs", "--last", "3", job],
        ["monitor", "job", job],
        ["monitor", "jobs"],
        ["monitor", "-j", job, "knobs"],
        ["inspect", job, "audit"],
        ["set", job, f"knob{ALL.replace(chr(0), '')}=1"],
    ]
    for words in verbs:
        terminal = on_terminal(*words, size=(50, 200))
        assert (terminal.wait() == 0) == (words[0] != "set"), terminal.screen
        assert steering(terminal.screen) == [], words
        assert b"\x1b[8m" not in terminal.screen, words
        lines = [line.strip() for line in terminal.screen.split(b"\r\n")]
        forged = [line for line in lines if line.startswith(b"FORGED")]
        assert forged in ([], [b"FORGED in an error"]), words
        assert len(terminal.screen) > 20, words

    raw = on_terminal("logs", "--raw", job)
    raw.wait()
    assert b"\x1b]52;c;ZXZpbA==" in raw.screen  # on request, as it was written
    screen = on_terminal("monitor", job, size=(50, 200))
    screen.expect(b"metric")
    screen.send(b"q")
    screen.wait()
    for sequence in (b"\x1b]52", b"\x1b]8;;", b"\x1b]0;", b"\x1bP$q", "\u202e".encode()):
        assert sequence not in screen.screen


@pytest.mark.process
def test_a_pipe_gets_log_lines_as_they_were_written(loom: Loom) -> None:
    Path("rank.py").write_text(f"print({CORPUS['clipboard']!r})\n")
    assert loom("run", "rank.py").returncode == 0

    assert CORPUS["clipboard"].encode() in loom("logs", "@").stdout
    (line,) = loom("logs", "@", "--json").stdout.splitlines()
    assert json.loads(line)["line"] == CORPUS["clipboard"]


@pytest.mark.process
def test_a_run_on_a_terminal_shows_what_its_own_program_writes(
    loom: Loom, on_terminal: Callable[..., Terminal]
) -> None:
    Path("rank.py").write_text("print('\\x1b[32mgreen\\x1b[0m 10%\\r 20%', flush=True)\n")

    terminal = on_terminal("run", "rank.py")
    terminal.wait()

    assert b"\x1b[32mgreen\x1b[0m 10%\r 20%" in terminal.screen
