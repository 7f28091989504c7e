"""`loom launch` stands where torchrun would, on one host; torchrun itself is the judge."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
TELL = f"""
import json, os, sys
told = {{name: os.environ.get(name) for name in {CONTRACT!r}}}
told["argv"] = sys.argv[1:]
with open(f"told-{{sys.argv[1]}}-{{os.environ['RANK']}}", "w") as file:
    json.dump(told, file)
"""
HUGE = """
import torch
before, kept = 0, []
for count in (0, 64):
    kept.append(torch.ones(count << 18))  # 4 bytes each
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
    before, grown = kilobytes, kilobytes - before
open("huge", "w").write(str(grown / 1024))
"""
FOREVER = "import os, time; open(f\"up{os.environ['RANK']}\", 'w').close(); time.sleep(600)\n"


def has_huge_pages() -> bool:
    """Tell whether who asks for huge pages gets them."""
    try:
        chosen = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return "[never]" not in chosen


def told(who: str, rank: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(Path(f"told-{who}-{rank}").read_text())
    return answer


@pytest.mark.process
@pytest.mark.needs("torch")
def test_ranks_find_what_they_find_under_torchrun(script: Any, loom: Any) -> None:
    name = script(TELL)
    words = ["--nproc_per_node", "2", "--max_restarts", "3", "--role", "tr", "--standalone", name]

    ours = loom("launch", *words, "x", "--lr", "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *words]
    theirs = subprocess.run([*torchrun, "y", "--lr", "1"], capture_output=True, text=True)

    assert (ours.returncode, theirs.returncode) == (0, 0), (ours.stderr, theirs.stderr)
    for rank in (0, 1):
        assert told("x", rank) == {**told("y", rank), "argv": ["x", "--lr", "1"]}


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.skipif(not has_huge_pages(), reason="this kernel gives nobody huge pages")
@pytest.mark.parametrize(("said", "least", "most"), [("", 32, 64), ("0", 0, 2)])
def test_large_tensors_lie_in_huge_pages_unless_the_user_says_no(
    said: str, least: int, most: int, script: Any, loom: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", said)

    done = loom("launch", "-n", "1", script(HUGE))

    assert done.returncode == 0, done.stderr
    assert least <= float(Path("huge").read_text()) <= most


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "env", "ranks"),
    [
        (["-n", "2"], {}, 2),
        (["--np", "3"], {}, 3),
        (["--ppn", "2"], {}, 2),
        ([], {"PET_NPROC_PER_NODE": "2"}, 2),
        ([], {}, 1),
        (["-n", "auto"], {"CUDA_VISIBLE_DEVICES": "4,5,6"}, 3),
    ],
)
def test_the_number_of_ranks_is_said_in_many_ways(
    words: list[str],
    env: dict[str, str],
    ranks: int,
    script: Any,
    loom: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)

    done = loom("launch", *words, script(TELL), "z")

    assert done.returncode == 0, done.stderr
    assert len(list(Path().glob("told-z-*"))) == ranks
    assert {told("z", rank)["WORLD_SIZE"] for rank in range(ranks)} == {str(ranks)}


@pytest.mark.process
def test_a_failed_rank_starts_all_again_as_often_as_allowed(script: Any, loom: Any) -> None:
    name = script(
        "import os, sys\n"
        "with open(f\"lives{os.environ['RANK']}\", 'a') as file: file.write('x')\n"
        "sys.exit(os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')\n"
    )

    done = loom("launch", "-n", "2", "--max-restarts", "2", name)

    assert done.returncode == 0, done.stderr
    assert Path("lives1").read_text() == "xxx"


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_the_command_ends_its_ranks_end_with_it(
    signum: int, script: Any, loom: Any, until: Any
) -> None:
    launch = loom.start("launch", "-n", "2", script(FOREVER))
    until(lambda: Path("up0").exists() and Path("up1").exists())
    (job,) = loom.ids()

    os.kill(launch.pid, signum)
    launch.wait(60)

    until(lambda: not ranks_of(job))
    shown = json.loads(loom("show", "--wait", job, "--json").stdout)
    reason = "launcher_lost" if signum == signal.SIGKILL else "cancelled_by_user"
    assert (shown["state"], shown["reason"]) == ("CANCELLED", reason)


@pytest.mark.process
@pytest.mark.parametrize(
    ("left", "ending"),
    [(0, ("FAILED", "time_limit")), (-7200, ("CANCELLED", "launcher_lost"))],
)
def test_a_launch_that_is_killed_as_its_allocation_ends_has_reached_its_limit(
    left: int,
    ending: tuple[str, str],
    script: Any,
    loom: Any,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOM_DEADLINE", str(int(time.time()) + left))
    launch = loom.start("launch", "-n", "1", script(FOREVER))
    until(lambda: Path("up0").exists())
    (job,) = loom.ids()

    launch.kill()
    launch.wait(60)

    shown = json.loads(loom("show", "--wait", job, "--json").stdout)
    assert (shown["state"], shown["reason"]) == ending


def ranks_of(job: str) -> list[str]:
    """Return the processes that carry the job's id, by /proc alone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LOOM_JOB={job}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.process
def test_a_module_and_a_command_are_launched(script: Any, loom: Any) -> None:
    module = loom("launch", "-n", "2", "-m", "json.tool", "--help")
    command = loom("launch", "--no-python", "-n", "2", "printenv", "RANK")

    assert module.stdout.count(b"usage: ") == 2
    assert sorted(command.stdout.split()) == [b"0", b"1", b"[rank0]:", b"[rank1]:"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nnodes", "2", "x.py"], "--nnodes 2: 1 host here; ask for a larger allocation"),
        (["-n", "0", "x.py"], "-n '0': write a number from 1, gpu, cpu or auto"),
        (["-n", "gpu", "x.py"], "-n gpu: no accelerator found; use cpu, auto or a number"),
        (["-n", "3", "--ppn", "2", "x.py"], "-n 3 is not a multiple of --ppn 2; change one"),
        (["--hostfile", "no", "x.py"], "no hosts from 'no': No such file or directory; set PBS_N"),
        (["-n", "2"], "nothing to launch: write `loom launch -n 4 train.py`"),
        (["-n", "2", "nowhere.py"], "no file 'nowhere.py'"),
    ],
)
def test_what_cannot_be_launched_is_said(words: list[str], message: str, loom: Any) -> None:
    done = loom("launch", *words)

    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
