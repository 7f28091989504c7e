"""What calls torchrun gets our launcher, and finds what torchrun gives; torchrun is the judge."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.shim import FOLDER

SHIM = (str(Path(FOLDER) / "torchrun"),)
REAL = (sys.executable, "-m", "torch.distributed.run")
# Each rank writes down whose child it is and which torchrun it would find.
WITNESS = """
import json, os, shutil, sys
def variables(pid):
    items = open(f"/proc/{pid}/environ").read().split("\\0")
    return dict(item.partition("=")[::2] for item in items if item)
seen = {name: os.environ.get(name) for name in ("LOOM_JOB", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")}
seen["parent"] = variables(os.getppid()).get("LOOM_AGENT_OF")
seen["parent_words"] = open(f"/proc/{os.getppid()}/cmdline").read().replace("\\0", " ")
seen["torchrun"] = shutil.which("torchrun")
with open("witness" + os.environ["RANK"], "w") as file:
    json.dump(seen, file)
"""
SPEAK = """
import os, sys, time
rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
spoke = "spoke-" + os.environ["MASTER_PORT"] + "-" + life + "-"
say = lambda file, line: os.write(file.fileno(), (line + "\\n").encode())  # torchrun tears others
say(sys.stdout, f"out {rank} {life}")
say(sys.stdout, "grüße")
say(sys.stderr, f"err {rank} {life}")
open(spoke + rank, "w").close()
while "fail" in sys.argv and not os.path.exists(spoke + "0"): time.sleep(0.01)
sys.exit(3 if "fail" in sys.argv and (rank, life) == ("1", "0") else 0)
"""
STAY = "import os, time; open('up' + os.environ['RANK'], 'w').close(); time.sleep(600)\n"
# Names of torchrun's contract, and those whose values are each launcher's own.
OF_TORCHRUN = ("PET_", "TORCH", "RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "OMP_")
EACH_ITS_OWN = {
    "MASTER_ADDR": "localhost is looked up, 127.0.0.1 is not",
    "MASTER_PORT": "any that is free",
    "TORCHELASTIC_ERROR_FILE": "beside the logs",
    "TORCHELASTIC_RUN_ID": "any that is new",
    "TORCHELASTIC_USE_AGENT_STORE": "ours is a file, which every rank opens",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "torchrun's note to itself",
    "PET_LOG_DIR": "TorchX's, for a torchrun inside",
    "TORCHX_JOB_ID": "TorchX's",
    "TORCHX_RANK0_HOST": "TorchX's",
}


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call the shim or the real one with the same words."""
    monkeypatch.setenv("LOOM_PYTHON", sys.executable)

    def call(who: tuple[str, ...], *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*who, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )

    return call


@pytest.fixture
def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def witnesses() -> list[dict[str, Any]]:
    paths = sorted(Path().glob("witness*"), key=lambda path: int(path.name[7:]))
    return [json.loads(path.read_text()) for path in paths]


# An app that calls torchrun.


@pytest.mark.process
@pytest.mark.parametrize("shape", ["1x2", "2x2"])
def test_an_unmodified_ddp_app_runs_under_our_launcher(
    shape: str, script: Any, loom: Any, free_port: str
) -> None:
    words = ["-j", shape, "--rdzv_port", free_port, "--script", script(WITNESS)]

    done = loom("run", "dist.ddp", *words)

    assert done.returncode == 0, done.stderr
    ranks = witnesses()
    assert len(ranks) == {"1x2": 2, "2x2": 4}[shape]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {str(len(ranks))}
    assert {rank["torchrun"] for rank in ranks} == {SHIM[0]}
    (inner,) = {rank["LOOM_JOB"] for rank in ranks}
    assert {rank["parent"] for rank in ranks} == {inner}
    (outer,) = json.loads(loom("ls", "--json").stdout)
    assert outer["id"] != inner
    assert sorted(loom.ids()) == sorted([inner, outer["id"]])
    assert {rank["TORCHELASTIC_RUN_ID"] for rank in ranks} == {outer["id"]}


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_word_of_the_users_leads_to_the_real_one(script: Any, loom: Any) -> None:
    words = ["-j", "1x1", "--env", "LOOM_TORCHRUN=real", "--script", script(WITNESS)]

    done = loom("run", "dist.ddp", *words)

    assert done.returncode == 0, done.stderr
    (rank,) = witnesses()
    assert rank["LOOM_JOB"] == loom.ids()[0]
    assert rank["parent"] is None
    assert "/torchrun " in rank["parent_words"]


@pytest.mark.process
def test_stopping_the_app_ends_what_its_torchrun_launched(
    script: Any, loom: Any, until: Any, free_port: str
) -> None:
    words = ["-j", "2x2", "--rdzv_port", free_port, "--script", script(STAY)]
    handle = loom("run", "-d", "dist.ddp", *words).stdout.decode().strip()
    until(lambda: len(list(Path().glob("up*"))) == 4)
    inner = [app_id for app_id in loom.ids() if app_id not in handle]

    done = loom("stop", handle)

    assert done.returncode == 0, done.stderr
    until(lambda: not loom.processes())
    assert len(inner) == 1
    assert list(Path("/dev/shm").glob(f"loom-{inner[0]}*")) == []
    listed = json.loads(loom("ls", "--json").stdout)
    assert [(app["id"], app["state"]) for app in listed] == [(handle.split("/")[-1], "CANCELLED")]


@pytest.mark.process
def test_apps_with_one_meeting_point_run_one_after_the_other(
    script: Any, loom: Any, until: Any, free_port: str
) -> None:
    name = script(
        "import os, time\n"
        "open(f\"up-{os.environ['LOOM_JOB']}-{os.environ['RANK']}\", 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    words = ["-d", "dist.ddp", "-j", "2x1", "--rdzv_port", free_port, "--script", name]
    first = loom("run", *words).stdout.decode().strip()
    until(lambda: len(list(Path().glob("up-*"))) == 2)

    second = loom("run", *words).stdout.decode().strip()
    until(lambda: has_refused(int(free_port)))
    Path("go").touch()

    assert [loom("show", "--wait", handle).returncode for handle in (first, second)] == [0, 0]
    assert len(list(Path().glob("up-*"))) == 4


def has_refused(port: int) -> bool:
    """Tell whether whoever listens at a port has hung up on a caller: the kernel remembers it."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "06" for line in lines)


# torchrun's words.


@pytest.mark.process
@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 1), ("os.kill(os.getpid(), 9)", 1)]
)
def test_whatever_goes_wrong_in_a_rank_is_code_one(
    ending: str, code: int, script: Any, torchrun: Any
) -> None:
    name = script(f"import os, sys\nif os.environ['RANK'] == '1': {ending or 'pass'}\n")

    done = torchrun(SHIM, "--nproc_per_node", "2", name)

    assert (done.returncode, done.stdout) == (code, "")
    assert bool(done.stderr) == bool(code)


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "words", [["--tee", "3", "--role", "tr"], ["-r", "0:1", "-t", "1:2", "--log-dir", "D"], []]
)
def test_what_is_printed_is_what_torchrun_prints(
    words: list[str], script: Any, torchrun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun says that it sets it, if it does
    name = script(SPEAK)

    ours, real = (torchrun(who, "--nproc_per_node", "2", *words, name) for who in (SHIM, REAL))

    assert (ours.returncode, real.returncode) == (0, 0), (ours.stderr, real.stderr)
    assert sorted(ours.stdout.splitlines(True)) == sorted(real.stdout.splitlines(True))
    assert sorted(ours.stderr.splitlines(True)) == sorted(real.stderr.splitlines(True))


@pytest.mark.process
@pytest.mark.needs("torch")
def test_the_tree_of_logs_is_torchruns_after_a_restart_too(script: Any, torchrun: Any) -> None:
    name = script(SPEAK)
    words = ["--nproc_per_node", "2", "--max_restarts", "1", "-r", "3", "--log-dir"]

    ours = torchrun(SHIM, *words, "ours", name, "fail")
    real = torchrun(REAL, *words, "real", name, "fail")

    assert (ours.returncode, ours.stdout, ours.stderr) == (0, "", "")
    assert (real.returncode, real.stdout) == (0, "")
    assert tree("ours") == tree("real")
    assert len(tree("ours")) == 8


@pytest.mark.process
@pytest.mark.needs("torch")
def test_ranks_find_all_of_torchruns_variables(script: Any, torchrun: Any) -> None:
    name = script("import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n")
    words = ["--nproc_per_node", "2", "--max_restarts", "1", "--no_python", "sh", "-c"]
    each = f"exec {sys.executable} {name} "

    ours = torchrun(SHIM, *words, each + "ours$RANK")
    real = torchrun(REAL, *words, each + "real$RANK")

    assert (ours.returncode, real.returncode) == (0, 0), (ours.stderr, real.stderr)
    for rank in ("0", "1"):
        assert contract("ours" + rank) == contract("real" + rank)
    told = json.loads(Path("ours0").read_text())
    assert {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= told.keys()


def tree(folder: str) -> dict[str, bytes]:
    """Return the files below the run's own folder, which has a name of its own."""
    (run,) = Path(folder).iterdir()
    files = [path for path in run.rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def contract(path: str) -> Mapping[str, str]:
    told = json.loads(Path(path).read_text())
    return {k: v for k, v in told.items() if k.startswith(OF_TORCHRUN) and k not in EACH_ITS_OWN}


# Silence and signals.


@pytest.mark.process
@pytest.mark.parametrize("restarts", [0, 1])
def test_ranks_that_say_nothing_for_too_long_are_ended(
    restarts: int, script: Any, loom: Any
) -> None:
    name = script(
        "import os, time\n"
        "with open('lives' + os.environ['RANK'], 'a') as file: file.write('x')\n"
        "print('now silent', flush=True)\n"
        "time.sleep(600)\n"
    )

    done = loom("launch", "-n", "2", "--timeout", "3", "--max-restarts", str(restarts), name)

    assert done.returncode == 124
    assert [Path(f"lives{rank}").read_text() for rank in (0, 1)] == ["x" * (restarts + 1)] * 2
    (job,) = loom.ids()
    shown = json.loads(loom("show", job, "--json").stdout)
    assert (shown["state"], shown["reason"]) == ("FAILED", "idle_output_3s")
    assert b"idle_output_3s" in done.stderr


@pytest.mark.process
def test_ranks_of_which_one_speaks_are_not_ended(script: Any, loom: Any) -> None:
    name = script(
        "import os, time\n"
        "for _ in range(14):\n"
        "    time.sleep(0.25)\n"
        "    if os.environ['RANK'] == '1': print('here', flush=True)\n"
    )

    done = loom("launch", "-n", "2", "--timeout", "3", name)

    assert (done.returncode, done.stdout.count(b"here")) == (0, 14)


@pytest.mark.process
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_to_the_command_reaches_every_rank(
    name: str, script: Any, loom: Any, until: Any
) -> None:
    words = script(
        "import os, signal, sys, time\n"
        "names = ('TERM', 'INT', 'HUP', 'QUIT', 'USR1', 'USR2')\n"
        "def note(signum, frame):\n"
        "    with open('got' + os.environ['RANK'], 'a') as file:\n"
        "        file.write(signal.Signals(signum).name[3:] + ' ')\n"
        "    sys.exit(0)\n"
        "for each in names: signal.signal(getattr(signal, 'SIG' + each), note)\n"
        "open('up' + os.environ['RANK'], 'w').close()\n"
        "while True: time.sleep(0.01)\n"
    )
    launch = loom.start("launch", "-n", "2", words)
    until(lambda: Path("up0").exists() and Path("up1").exists())

    os.kill(launch.pid, getattr(signal, f"SIG{name}"))
    launch.communicate(timeout=60)

    assert [Path(f"got{rank}").read_text() for rank in (0, 1)] == [f"{name} "] * 2
