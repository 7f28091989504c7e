"""`loom run train.py` is `python train.py` with a job around it: each compared side by side."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

Script = Callable[..., str]

TELL = """
import json, os, sys
json.dump({
    "argv": sys.argv,
    "executable": sys.executable,
    "path0": sys.path[0],
    "file": __file__,
    "name": __name__,
    "cwd": os.getcwd(),
    "flags": str(sys.flags),
    "umask": os.umask(0),
    "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
}, sys.stdout)
"""

HANDLERS = """
import os, signal, sys, time
def note(signum, frame):
    with open("signals", "a") as file:
        file.write(f"{signal.Signals(signum).name}\\n")
    if signum in (signal.SIGTERM, signal.SIGINT):
        print("last words", flush=True)
        sys.exit(9)
for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), note)
print("ready", flush=True)
time.sleep(60)
"""

# What a shell or a parser could take for its own.
AWKWARD = [
    "--help",
    "-n",
    "7",
    "--",
    "-d",
    "",
    "two words",
    "new\nline",
    "$HOME",
    "${app_id}",
    "$$",
    "$(echo no)",
    "`echo no`",
    "'\"\\",
    "*",
    "~",
    "ключ=値🔥",
    "x" * 10_000,
]


def python(*words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    env = dict(os.environ)  # readline, once imported, adds COLUMNS behind Python's back
    return subprocess.run(["python", *words], input=stdin, capture_output=True, env=env, timeout=60)


def own(stderr: bytes) -> bytes:
    """Return a program's own stderr: without the lines in which loom speaks."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"loom: "))


def test_a_script_finds_what_python_would_give_it(loom: Any, script: Script):
    name = script(TELL, "sub/train.py")

    ours, theirs = loom("run", name, *AWKWARD), python(name, *AWKWARD)

    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert json.loads(ours.stdout)["argv"] == [name, *AWKWARD]


def test_a_module_finds_what_python_would_give_it(loom: Any, script: Script):
    script("", "pkg/__init__.py")
    script(TELL, "pkg/mod.py")
    words = ("-m", "pkg.mod", "--lr", "1", "-m", "x", "--help")

    ours, theirs = loom("run", *words), python(*words)

    assert json.loads(ours.stdout) == json.loads(theirs.stdout)


def test_alone_without_an_accelerator_the_environment_has_no_ranks(loom: Any, script: Script):
    name = script("import json, os; print(json.dumps(dict(os.environ)))")

    ours, theirs = json.loads(loom("run", name).stdout), json.loads(python(name).stdout)

    assert {key: ours.get(key) for key in theirs if key not in ("PATH", "LC_CTYPE")} == {
        key: theirs[key] for key in theirs if key not in ("PATH", "LC_CTYPE")
    }
    assert theirs["PATH"] in ours["PATH"]
    assert set(ours) - set(theirs) - {"LC_CTYPE"} == {
        "LOOM_AGENT",
        "LOOM_ATTEMPT",
        "LOOM_CHECKPOINT_ROOT",
        "LOOM_GENERATION",
        "LOOM_JOB",
        "LOOM_NODE",
        "LOOM_PAGE",
        "LOOM_PYTHON",
        "LOOM_ROLE",
        "LOOM_THREADLET_OWNER",
        "PET_LOG_DIR",
        "PYTHONUNBUFFERED",
        "THP_MEM_ALLOC_ENABLE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHX_JOB_ID",
        "TORCHX_RANK0_HOST",
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(255)", 255),
        ("raise SystemExit('sorry')", 1),
        ("1 / 0", 1),
        ("def broken(", 1),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", 128 + signal.SIGSEGV),
        ("import os; os.abort()", 128 + signal.SIGABRT),
    ],
)
def test_the_exit_code_is_the_scripts(text: str, code: int, loom: Any, script: Script):
    name = script(text)

    ours, theirs = loom("run", name), python(name)

    assert ours.returncode == code
    assert own(ours.stderr) == theirs.stderr
    assert ours.returncode == (theirs.returncode if theirs.returncode >= 0 else code)


def test_every_byte_of_both_outputs_arrives(loom: Any, script: Script):
    name = script(
        "import sys\n"
        "every = bytes(range(256)) * 3000\n"
        "sys.stdout.buffer.write(every + b'no newline at the end')\n"
        "sys.stderr.buffer.write(b'\\xff\\x00\\r\\n' * 5000)\n"
    )

    ours, theirs = loom("run", name), python(name)

    assert ours.stdout == theirs.stdout
    assert own(ours.stderr) == theirs.stderr
    assert ours.returncode == 0


def test_standard_input_is_the_scripts(loom: Any, script: Script):
    name = script("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
    data = bytes(range(256)) * 4000

    ours = loom("run", name, stdin=data)

    assert ours.stdout == data
    assert ours.returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_script_and_its_last_words_come_back(
    signum: int, loom: Any, script: Script
):
    process = loom.start("run", script(HANDLERS))
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)

    assert out == b"last words\n"
    assert process.returncode == 9
    assert Path("signals").read_text() == f"{signal.Signals(signum).name}\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_script_without_handlers_ends_by_the_signal(signum: int, loom: Any, script: Script):
    process = loom.start("run", script("print('ready', flush=True); import time; time.sleep(60)"))
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signum)
    process.communicate(timeout=60)

    assert process.returncode == 128 + signum


def test_user_signals_are_handed_on_and_end_nothing(loom: Any, script: Script, until: Any):
    process = loom.start("run", script(HANDLERS))
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGUSR1)
    until(lambda: Path("signals").exists() and Path("signals").read_text() == "SIGUSR1\n")
    process.send_signal(signal.SIGUSR2)
    until(lambda: Path("signals").read_text() == "SIGUSR1\nSIGUSR2\n")
    process.terminate()
    process.communicate(timeout=60)

    assert process.returncode == 9


def test_a_second_signal_reaches_a_script_that_bears_the_first(loom: Any, script: Script):
    name = script(
        "import time\n"
        "for word in ('ready', 'once more', 'enough'):\n"
        "    try:\n"
        "        print(word, flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt: pass\n"
        "    if word == 'enough': raise SystemExit(4)\n"
    )
    process = loom.start("run", "-cfg", "grace=60", name)

    for word in (b"ready\n", b"once more\n", b"enough\n"):
        assert process.stdout.readline() == word
        process.send_signal(signal.SIGINT)

    process.communicate(timeout=60)
    assert process.returncode == 4


def test_a_signal_before_the_job_exists_leaves_nothing(loom: Any, script: Script, until: Any):
    name = script("import time; time.sleep(60)")
    for _ in range(3):
        process = loom.start("run", name)
        assert process.stderr.readline().endswith(b"1 process, no accelerator found\n")

        process.terminate()
        process.communicate(timeout=60)

        assert process.returncode == 128 + signal.SIGTERM
        until(lambda: loom.processes() == {})


def test_a_reader_that_goes_away_ends_the_script(loom: Any, script: Script):
    name = script("import time\nwhile True:\n    print('word', flush=True)\n    time.sleep(0.01)")
    process = loom.start("run", name)
    assert process.stdout.readline() == b"word\n"

    process.stdout.close()
    process.wait(60)

    assert process.returncode == 141
    assert b"is stopped: its output was closed" in process.stderr.read()
    assert loom.processes() == {}


def test_a_detached_job_goes_on_without_a_reader(loom: Any, script: Script):
    name = script(
        "import pathlib, time\n"
        "give_up = time.monotonic() + 50\n"
        "while not pathlib.Path('go').exists() and time.monotonic() < give_up:\n"
        "    print('word', flush=True); time.sleep(0.01)\n"
    )
    process = loom.start("run", "-d", "--log", name)
    assert process.stdout.readline().startswith(b"local://")

    process.stdout.close()
    process.wait(60)

    assert b"RUNNING" in loom("show", "@").stdout
    Path("go").touch()
    assert loom("show", "--wait", "@").returncode == 0


def test_without_n_and_without_accelerators_the_first_line_says_why_one(loom: Any, script: Script):
    done = loom("run", script("pass"))

    (job,) = loom.ids()
    assert done.stderr.decode() == f"loom: {job}: 1 process, no accelerator found\n"


def test_there_is_one_process_for_each_accelerator(loom: Any, script: Script):
    name = script("import os; print(os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])")

    done = loom("run", name, env={"CUDA_VISIBLE_DEVICES": "0,1"})

    (job,) = loom.ids()
    first = done.stderr.decode().splitlines()[0]
    assert first == f"loom: {job}: 2 processes, one for each accelerator"
    assert sorted(done.stdout.splitlines()) == [b"[rank0]: 0 2", b"[rank1]: 1 2"]


def test_four_ranks_have_their_environment_and_their_names(loom: Any, script: Script):
    name = script(
        "import os, sys\n"
        "print(*(os.environ[key] for key in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))\n"
        "print('low', file=sys.stderr)\n"
    )

    done = loom("run", "-n", "4", name)

    assert sorted(done.stdout.decode().splitlines()) == [
        f"[rank{rank}]: {rank} {rank} 4 127.0.0.1" for rank in range(4)
    ]
    assert sorted(own(done.stderr).decode().splitlines()) == [
        f"[rank{rank}]: low" for rank in range(4)
    ]
    assert done.returncode == 0


def test_the_code_of_the_first_rank_that_fails_is_the_commands(loom: Any, script: Script):
    name = script(
        "import os, time\nif os.environ['RANK'] == '2': raise SystemExit(5)\ntime.sleep(60)\n"
    )

    done = loom("run", "-n", "4", name)

    assert done.returncode == 5
    assert b"FAILED (exit_code_5_rank_2)" in done.stderr


def test_a_signal_stops_all_ranks_when_there_is_no_terminal(loom: Any, script: Script):
    process = loom.start("run", "-n", "2", script(HANDLERS))
    ready = {process.stdout.readline() for _ in range(2)}
    assert ready == {b"[rank0]: ready\n", b"[rank1]: ready\n"}

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert sorted(out.splitlines()) == [b"[rank0]: last words", b"[rank1]: last words"]
    assert process.returncode == 9
    assert b"CANCELLED (cancelled_by_user)" in err


def test_a_progress_bar_of_a_rank_is_seen_while_it_moves(loom: Any, script: Script):
    name = script(
        "import sys, time, pathlib\n"
        "for part in (10, 20, 30): sys.stdout.write(f'{part}%\\r'); sys.stdout.flush()\n"
        "give_up = time.monotonic() + 50\n"
        "while not pathlib.Path('seen').exists() and time.monotonic() < give_up: time.sleep(0.02)\n"
    )
    process = loom.start("run", "-n", "2", name, bufsize=0)

    shown = b""
    while not (b"[rank0]: 30%" in shown and b"[rank1]: 30%" in shown):
        more = os.read(process.stdout.fileno(), 100)
        assert more, shown
        shown += more
    Path("seen").touch()
    rest, _ = process.communicate(timeout=60)

    states = [b"[rank%d]: %d0%%" % (rank, part) for rank in (0, 1) for part in (1, 2, 3)]
    assert set((shown + rest).splitlines()) <= set(states)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_no_trouble(closed: int, loom: Any, script: Script):
    name = script("print('word ' * 100_000); open('ran', 'w').close()")

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}<&-', "sh", loom.path, "run", name],
        capture_output=True,
        timeout=60,
    )

    assert done.returncode == 0
    assert own(done.stderr) == b""
    assert Path("ran").exists()


def test_the_python_of_the_search_path_runs_the_script(loom: Any, script: Script, tmp_path: Path):
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\necho other\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    (tmp_path / "bin" / "loom").symlink_to(loom.path)

    done = subprocess.run(
        ["loom", "run", script("print('script')")],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=60,
    )

    assert done.stdout == b"other\nscript\n"
