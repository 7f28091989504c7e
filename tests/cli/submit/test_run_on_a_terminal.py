"""`loom run` on a real terminal: one program has it as with `python`, a group can be left."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.api import AppState

pytestmark = pytest.mark.process

Script = Callable[..., str]


WAITING = """
import time
from pathlib import Path
print("ready", flush=True)
give_up = time.monotonic() + 50
while not Path("go").exists() and time.monotonic() < give_up:
    time.sleep(0.02)
print("gone on", flush=True)
"""


def test_a_program_sees_a_terminal_of_our_size_on_all_three(on_terminal: Any, script: Script):
    name = script(
        "import os; print([os.isatty(fd) for fd in (0, 1, 2)], tuple(os.get_terminal_size()),"
        " os.ttyname(0) != '?', os.tcgetpgrp(0) == os.getpgrp())"
    )

    terminal = on_terminal("run", name, size=(31, 97))

    terminal.expect(b"[True, True, True] (97, 31) True True\r\n")
    assert terminal.wait() == 0


def test_the_size_is_right_from_the_first_moment(on_terminal: Any):
    terminal = on_terminal("run", "stty", "size", size=(31, 97))

    terminal.expect(b"31 97\r\n")
    assert terminal.wait() == 0


def test_a_new_size_of_the_window_reaches_the_program(on_terminal: Any, script: Script):
    name = script(
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGWINCH])\n"
        "print('now', *os.get_terminal_size(), flush=True)\n"
    )
    terminal = on_terminal("run", name, size=(24, 80))
    terminal.expect(b"ready")

    terminal.resize(40, 132)

    terminal.expect(b"now 132 40\r\n")
    assert terminal.wait() == 0


def test_a_program_that_is_started_again_has_the_terminal_again(on_terminal: Any, script: Script):
    name = script(
        "import os, pathlib\n"
        "first = not pathlib.Path('again').exists()\n"
        "pathlib.Path('again').touch()\n"
        "if first: raise SystemExit(1)\n"
        "print(input('? '), *os.get_terminal_size())\n"
    )
    terminal = on_terminal("run", "--max-retries", "1", name, size=(31, 97))
    terminal.expect(b"? ")

    terminal.send(b"here\r")

    terminal.expect(b"here\r\nhere 97 31\r\n")
    assert terminal.wait() == 0


def test_input_and_progress_bars_work_untouched(on_terminal: Any, script: Script):
    name = script(
        "import sys\n"
        "name = input('name? ')\n"
        "for part in (10, 50, 100):\n"
        "    sys.stderr.write(f'\\r{part:3}%')\n"
        "print(f'\\nhello {name}')\n"
    )
    terminal = on_terminal("run", name)
    terminal.expect(b"name? ")

    terminal.send("Zoë\r".encode())

    terminal.expect("Zoë\r\n".encode())  # the echo of the program's own terminal
    terminal.expect(b"\r 10%\r 50%\r100%\r\nhello " + "Zoë\r\n".encode())
    assert terminal.wait() == 0


def test_a_breakpoint_answers(on_terminal: Any, script: Script):
    name = script("value = 6 * 7\nbreakpoint()\nprint('after', value)\n")
    terminal = on_terminal("run", name)
    terminal.expect(b"(Pdb) ")

    terminal.send(b"p value + 1\r")
    terminal.expect(b"\r\n43\r\n(Pdb) ")
    terminal.send(b"value = 5\r")
    terminal.expect(b"(Pdb) ")
    terminal.send(b"c\r")

    terminal.expect(b"after 5\r\n")
    assert terminal.wait() == 0


def test_a_long_paste_arrives_whole(on_terminal: Any, script: Script):
    name = script(
        "import os, sys, time\n"
        "print('ready', flush=True)\n"
        "time.sleep(0.3)\n"
        "lines = [sys.stdin.readline() for _ in range(400)]\n"
        "got = f'got {sum(map(len, lines))} {len(set(lines))}\\n'\n"
        "os.write(1, got.encode())\n"  # whole, among the echo of what was pasted
    )
    terminal = on_terminal("run", name)
    terminal.expect(b"ready")

    terminal.send(b"".join(b"%099d\r" % number for number in range(400)))

    terminal.expect(b"got 40000 400\r\n")
    assert terminal.wait() == 0


def test_ctrl_c_is_a_keyboard_interrupt_in_the_program(on_terminal: Any, script: Script):
    name = script(
        "import time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "    raise SystemExit(7)\n"
    )
    terminal = on_terminal("run", name)
    terminal.expect(b"ready")

    terminal.send(b"\x03")

    terminal.expect(b"^Cinterrupted\r\n")
    assert terminal.wait() == 7


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("raise SystemExit(3)", 3),
        ("import tty; tty.setraw(0)", 0),
    ],
)
def test_the_terminal_is_as_it_was_however_the_program_ended(
    end: str, code: int, on_terminal: Any, script: Script
):
    terminal = on_terminal("run", script(end))

    assert terminal.wait() == code

    assert terminal.modes() == terminal.before


def test_how_a_program_failed_is_said_once(on_terminal: Any, script: Script):
    terminal = on_terminal("run", script("raise SystemExit(3)"))

    assert terminal.wait() == 3

    assert len(re.findall(rb"loom: train-\w+ FAILED", terminal.screen)) == 1


def test_sigterm_to_the_command_ends_the_program_and_restores_the_terminal(
    on_terminal: Any, script: Script
):
    name = script(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('told to end'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    terminal = on_terminal("run", name)
    terminal.expect(b"ready")

    terminal.process.terminate()

    terminal.expect(b"told to end\r\n")
    assert terminal.wait() == 1
    assert terminal.modes() == terminal.before


def test_closing_the_window_leaves_the_program_running(
    on_terminal: Any, script: Script, loom: Any, until: Any
):
    terminal = on_terminal("run", script(WAITING))
    terminal.expect(b"ready")

    terminal.hang_up()

    terminal.process.wait(60)
    assert b"RUNNING" in loom("ls").stdout
    Path("go").touch()
    assert loom("show", "--wait", "@").returncode == 0
    assert b"gone on" in loom("logs", "@").stdout


def test_a_command_that_ignores_the_closed_window_waits_for_the_program(
    on_terminal: Any, script: Script
):
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
    terminal = on_terminal("run", script(f"{WAITING}\nraise SystemExit(3)"), before=ignoring)
    terminal.expect(b"ready")

    terminal.hang_up()
    Path("go").touch()

    assert terminal.process.wait(60) == 3


def test_a_redirected_stderr_gets_the_programs_own(on_terminal: Any, script: Script):
    name = script("import sys; print('out'); print('problem', file=sys.stderr)")

    terminal = on_terminal("-c", f"loom run {name} 2>err.txt", command="bash")

    terminal.expect(b"out\r\n")
    assert terminal.wait() == 0
    assert Path("err.txt").read_text().splitlines()[-1] == "problem"


def test_behind_an_ampersand_a_program_runs_on_and_the_shell_keeps_its_input(
    on_terminal: Any, script: Script
):
    terminal = on_terminal("--norc", "-i", command="bash")
    name = script("import sys; print('read', repr(sys.stdin.read()))")

    terminal.send(f"loom run {name} & wait; echo shell lives\r".encode())

    terminal.expect(b"read ''\r\n")
    terminal.expect(b"\nshell lives\r\n")
    terminal.send(b"exit\r")
    assert terminal.wait() == 0


def test_the_first_ctrl_c_leaves_a_group_running_and_says_how_to_come_back(
    on_terminal: Any, script: Script, loom: Any
):
    terminal = on_terminal("run", "-n", "2", script(WAITING))
    terminal.expect(b"ready")
    terminal.expect(b"ready")

    terminal.send(b"\x03")

    assert terminal.wait() == 130
    (job,) = loom.ids()
    for words in (
        f"{job} is still running; press Ctrl-C again to stop it",
        f"loom logs -f {job}",
        f"loom show {job}",
        f"loom stop {job}",
    ):
        assert words.encode() in terminal.screen
    assert b"RUNNING" in loom("show", job).stdout
    Path("go").touch()
    assert loom("show", "--wait", job).returncode == 0


def test_a_second_ctrl_c_stops_the_group_and_its_last_words_are_shown(
    on_terminal: Any, script: Script, loom: Any
):
    name = script(
        "import time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved', flush=True)\n"
        "    raise\n"
    )
    terminal = on_terminal("run", "-n", "2", name)
    terminal.expect(b"ready")
    terminal.expect(b"ready")
    terminal.send(b"\x03")
    terminal.expect(b"press Ctrl-C again to stop it")

    terminal.send(b"\x03")

    terminal.expect(b"saved\r\n")
    terminal.expect(b"saved\r\n")
    assert terminal.wait() == 130
    assert b"CANCELLED (cancelled_by_user)" in terminal.screen
    assert loom.processes() == {}


def test_ctrl_c_on_a_detached_program_that_is_watched_only_leaves_it(
    on_terminal: Any, script: Script, loom: Any
):
    terminal = on_terminal("run", "-d", "--log", script(WAITING))
    terminal.expect(b"\nready")

    terminal.send(b"\x03")

    assert terminal.wait() == 130
    assert b"RUNNING" in loom("show", "@").stdout
    Path("go").touch()
    assert loom("show", "--wait", "@").returncode == 0


def test_following_logs_ends_at_ctrl_c_without_a_word(on_terminal: Any, script: Script, loom: Any):
    loom("run", "-d", script(WAITING))
    terminal = on_terminal("logs", "-f")
    terminal.expect(b"ready\r\n")

    terminal.send(b"\x03")

    assert terminal.wait() == 130
    assert terminal.screen == b"^C\r\n"
    Path("go").touch()
    assert loom("show", "--wait", "@").returncode == 0


def test_tables_end_where_the_terminal_does_and_states_have_colours(on_terminal: Any, ended: Any):
    ended("train-b", at=AppState.FAILED, reason="exit_code_1_" + "x" * 60)

    listing = on_terminal("ls", size=(24, 40))
    shown = on_terminal("show", "train-b")

    assert listing.wait() == 0
    lines = re.sub(r"\x1b\[\d*m", "", listing.screen.decode()).splitlines()
    assert [len(line) for line in lines] == [40, 40]
    assert shown.wait() == 0
    assert b"\x1b[31mFAILED\x1b[0m" in listing.screen
    assert b"\x1b[31mFAILED\x1b[0m" in shown.screen


def test_a_long_name_shrinks_itself_and_leaves_the_other_columns(
    on_terminal: Any, ended: Any, loom: Any
):
    name = "a-sweep-over-" + "learning-rates-" * 5 + "x1"
    ended(name, at=AppState.FAILED, reason="exit_code_1")
    ended("train-b")

    listing = on_terminal("ls", size=(24, 80))
    piped = loom("ls").stdout.decode()

    assert listing.wait() == 0
    shown = re.sub(r"\x1b\[\d*m", "", listing.screen.decode()).splitlines()
    heads, *rows = [line.split() for line in shown]
    assert heads == ["ID", "STATE", "STEP", "AGE", "TOOK", "REASON"]
    (long,) = [row for row in rows if row[0] != "train-b"]
    assert (long[0][:8], long[0][-3:], "…" in long[0]) == ("a-sweep-", "-x1", True)
    assert (long[1], long[-1]) == ("FAILED", "exit_code_1")
    assert max(map(len, shown)) <= 80
    assert name in piped
    assert "\x1b" not in piped


def test_no_color_is_honoured(on_terminal: Any, ended: Any, monkeypatch: pytest.MonkeyPatch):
    ended("train-b")
    monkeypatch.setenv("NO_COLOR", "1")

    shown, doctor = on_terminal("show", "train-b"), on_terminal("doctor")
    listing = on_terminal("ls")

    assert shown.wait() == listing.wait() == 0
    assert doctor.wait() in (0, 1)  # tests beside this one leave what it complains of
    assert b"\x1b[3" not in shown.screen + doctor.screen + listing.screen


BARS = """
import os, sys, time
rank = os.environ["RANK"]
for n in range(301):
    done = "#" * (n // 10 * (1 + int(rank)))
    sys.stderr.write(f"\\r{n:3d}/300 |{done}| of {rank}")
    sys.stderr.flush()
    time.sleep(0.002 + 0.001 * int(rank))
sys.stderr.write("\\n")
print("trained", rank, flush=True)
"""


@pytest.mark.parametrize("verb", ["run", "launch"])
def test_progress_bars_of_several_ranks_tear_no_line(
    verb: str, on_terminal: Any, script: Script, loom: Any
):
    terminal = on_terminal(verb, "-n", "2", script(BARS))

    assert terminal.wait() == 0
    lines = terminal.screen.decode().split("\r\n")
    bars = [line for line in lines if "/300" in line]
    form = re.compile(r"\[rank(\d)\]: +(\d+)/300 \|#*\| of \1")
    states = [found.groups() for line in bars if (found := form.fullmatch(line))]
    assert len(states) == len(bars), "each is a whole line of one rank"
    assert {("0", "300"), ("1", "300")} <= set(states)
    assert len(bars) < 300, "not each of 602 states"
    assert {"[rank0]: trained 0", "[rank1]: trained 1"} <= set(lines)

    said = loom("logs", "@").stdout.decode().splitlines()
    raw = loom("logs", "@", "--raw").stdout
    assert sorted(line for line in said if "/300" in line) == [
        f"[rank0]: 300/300 |{'#' * 30}| of 0",
        f"[rank1]: 300/300 |{'#' * 60}| of 1",
    ]
    assert raw.count(b"\r") == 602
