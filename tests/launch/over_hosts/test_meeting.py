"""Launches that somebody starts on every host meet, as torchrun's do, and end together."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchloom.launch.shim import FOLDER

from ...harness.home import allowed, until
from ...harness.host_launches import LIMIT, LOOM, STAY, Launches, end
from .test_losses import TWICE

TORCHRUN = str(Path(FOLDER) / "torchrun")
PORT = "29731"
STATIC = ("--master_addr", "n1", "--master_port", PORT)
C10D = ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"n1:{PORT}", "--rdzv_id", "night")
TWO_EACH = {0: ("n1", 0), 1: ("n1", 1), 2: ("n2", 0), 3: ("n2", 1)}
SAY = "sys.stdout.write(f\"rank {told['RANK']} of {told['host']}\\n\")"  # one write: ranks share it


def torchrun(
    launches: Launches, host: str, *words: str | Path, **env: str
) -> "subprocess.Popen[str]":
    """Start the shim on a host, as a user's script would."""
    return launches.start(host, TORCHRUN, *words, env={"LOOM_PYTHON": sys.executable, **env})


def pair(launches: Launches, *words: str | Path) -> "list[subprocess.Popen[str]]":
    """Start the same command on two hosts, with two ranks each; the head is n1."""
    common = (*C10D, "--nproc_per_node", "2")
    return [torchrun(launches, host, *common, *words) for host in ("n2", "n1")][::-1]


def said(process: "subprocess.Popen[str]") -> tuple[list[str], str]:
    out, err = process.communicate(timeout=LIMIT)
    return sorted(out.splitlines()), err


def listens(launches: Launches, host: str) -> bool:
    """Tell whether a head takes calls there."""
    return bool(launches.cluster.run(host, ["ss", "-Hltn", f"sport = :{PORT}"]).stdout)


def is_waiting(launches: Launches, host: str) -> bool:
    """Tell whether a launch has come as far as it can without the others."""
    commands = launches.processes(host).values()
    return listens(launches, host) or any("torchloom.cli.torchrun" in words for words in commands)


def test_one_launch_a_node_by_srun_is_one_job(in_slurm: Launches) -> None:
    train = in_slurm.script(SAY)
    step = ["srun", "--ntasks-per-node=1", *LOOM, "launch", "--ppn", "2", train]

    done = in_slurm.cluster.salloc(
        2, step, ["--nodelist=n1,n2"], env=in_slurm.variables(), timeout=LIMIT
    )

    assert done.returncode == 0, done.stderr
    assert in_slurm.places() == TWO_EACH
    assert sorted(done.stdout.splitlines()) == [
        f"[rank{rank}]: rank {rank} of {host}" for rank, (host, _) in TWO_EACH.items()
    ]


@pytest.mark.parametrize("within", [(), ("srun", "--nodes=1", "--ntasks=1", "--nodelist=n2")])
def test_a_torchrun_that_speaks_of_one_host_stays_there(
    in_slurm: Launches, within: tuple[str, ...]
) -> None:
    words = [*within, TORCHRUN, "--nproc_per_node", "2", in_slurm.script(SAY)]
    env = in_slurm.variables({"LOOM_PYTHON": sys.executable})

    done = in_slurm.cluster.salloc(2, words, ["--nodelist=n1,n2"], env=env, timeout=LIMIT)

    here = "n2" if within else "ctl"
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {here}" for rank in (0, 1)]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("first", ["n1", "n2"])
@pytest.mark.parametrize("how", ["static", "c10d"])
def test_torchruns_on_two_hosts_meet_in_any_order(launches: Launches, how: str, first: str) -> None:
    train = launches.script(SAY)
    order = ["n1", "n2"] if first == "n1" else ["n2", "n1"]

    started = {}
    for host in order:
        place = ["--node_rank", str(int(host[1]) - 1), *STATIC] if how == "static" else C10D
        words = ["--nnodes", "2", *place, "--nproc_per_node", "2", "--tee", "3", train]
        started[host] = torchrun(launches, host, *words)
        if host == first:
            until(lambda: is_waiting(launches, first))
    printed = {host: said(process) for host, process in started.items()}

    assert [started[host].returncode for host in ("n1", "n2")] == [0, 0], printed
    assert launches.places() == TWO_EACH
    assert printed["n1"] == (["[default0]:rank 0 of n1", "[default1]:rank 1 of n1"], "")
    assert printed["n2"] == (["[default2]:rank 2 of n2", "[default3]:rank 3 of n2"], "")
    told = list(launches.told().values())
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    address = launches.cluster.addresses["n1"]
    assert {tuple(one[name] for name in names) for one in told} == {("4", "2", address)}
    run_ids = {one["env"]["TORCHELASTIC_RUN_ID"] for one in told}
    assert run_ids == ({"night"} if how == "c10d" else {launches.app_id})
    assert {one["LOOM_JOB"] for one in told} == {launches.app_id}


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_a_rank_killed_on_either_host_starts_all_again(launches: Launches, host: str) -> None:
    train = launches.script(TWICE)
    logs = launches.folder / "D"
    words = ["--nnodes", "2", "--max_restarts", "1", "-r", "3", "--log-dir", logs, train]
    head, other = pair(launches, *words)
    launches.until_up(4)

    os.kill(min(launches.ranks_on(host)), signal.SIGKILL)
    printed = said(head), said(other)

    assert (head.returncode, other.returncode) == (0, 0), printed
    assert [len(lives) for lives in launches.lives().values()] == [2, 2, 2, 2]
    assert launches.places() == TWO_EACH
    assert printed == (([], ""), ([], ""))
    copies = sorted(path.relative_to(logs) for path in logs.glob("*/attempt_1/*/stdout.log"))
    runs = [f"{launches.app_id}_{node}" for node in (0, 1)]
    expected = [Path(run, "attempt_1", rank, "stdout.log") for run in runs for rank in "01"]
    assert copies == expected
    assert {(logs / path).read_text() for path in copies} == {"second of 4\n"}


@pytest.mark.parametrize("victim", ["command", "launch process", "all of the host"])
def test_without_the_head_no_rank_lives_on(launches: Launches, victim: str) -> None:
    head, other = pair(launches, "--nnodes", "2", launches.script(STAY))
    launches.until_up(4)
    assert len(launches.ranks_on("n2")) == 2

    began = time.monotonic()
    if victim == "command":
        end(head)
    elif victim == "launch process":
        os.kill(launch_process(launches), signal.SIGKILL)
    else:
        launches.kill("n1")
    until(lambda: not launches.ranks_on("n2") and not launches.ranks_on("n1"))

    assert time.monotonic() - began < allowed(5)
    assert other.wait(LIMIT) == 1
    head.wait(LIMIT)


def launch_process(launches: Launches) -> int:
    """Return the head's launch process, which has the connections of the others."""
    record = launches.record()
    listed = launches.cluster.run("n1", ["ss", "-Htnp", f"sport = :{PORT}"]).stdout
    assert f"pid={record['launcher']['pid']}," in listed
    pid = launches.number_of("n1", record["launcher"]["pid"])
    assert pid
    return pid


def test_nobody_answers_at_the_meeting_point_once_the_launch_process_is_gone(
    launches: Launches,
) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAY
    head, other = pair(launches, "--nnodes", "2", launches.script(stubborn))
    launches.until_up(4)
    until(lambda: all("up" in launches.log(node, rank) for node in (0, 1) for rank in (0, 1)))
    record = launches.record()
    look = ["ss", "-Hltnp", f"sport = :{PORT}"]
    holders = launches.cluster.run("n1", look).stdout

    os.kill(launch_process(launches), signal.SIGKILL)
    until(lambda: not launches.cluster.run("n1", look).stdout)

    assert f"pid={record['launcher']['pid']}," in holders
    assert f"pid={record['guard']['pid']}," not in holders
    assert launches.ranks_on("n1")  # the guard is still there: it has ranks to end
    assert (head.wait(LIMIT), other.wait(LIMIT)) == (1, 1)


def test_a_killed_launch_is_a_lost_node_and_the_job_fails(launches: Launches) -> None:
    head, other = pair(launches, "--nnodes", "2", "--max_restarts", "3", launches.script(STAY))
    launches.until_up(4)

    launches.kill("n2")

    assert head.wait(LIMIT) == 1
    assert launches.record()["reason"].startswith("node_lost_")
    other.wait(LIMIT)


def test_with_fewer_nodes_allowed_a_lost_one_is_left_out(launches: Launches) -> None:
    words = ["--nnodes", "1:2", "--max_restarts", "1", launches.script(TWICE)]
    head, other = pair(launches, *words)
    launches.until_up(4)

    end(other)

    assert head.wait(LIMIT) == 0, said(head)
    assert [life["WORLD_SIZE"] for life in launches.lives()[0]] == ["4", "2"]


def test_after_the_last_call_as_many_start_as_came(launches: Launches) -> None:
    train = launches.script(SAY)
    conf = ["--rdzv_conf", "last_call_timeout=1"]

    lone = torchrun(launches, "n1", *C10D, *conf, "--nnodes", "1:2", "--nproc_per_node", "2", train)

    assert said(lone) == (["rank 0 of n1", "rank 1 of n1"], "")
    assert lone.returncode == 0
    assert {one["WORLD_SIZE"] for one in launches.told().values()} == {"2"}


def test_whoever_has_another_key_is_told_so(launches: Launches) -> None:
    train = launches.script(SAY)
    elsewhere = str(launches.folder / "elsewhere")
    words = [*C10D, "--nnodes", "2", "--rdzv_conf"]
    head = torchrun(launches, "n1", *words, "join_timeout=10", train)
    until(lambda: listens(launches, "n1"))
    stranger = torchrun(launches, "n2", *words, "join_timeout=2", train, LOOM_HOME=elsewhere)

    (_, told), (_, alone) = said(stranger), said(head)

    assert (stranger.returncode, head.returncode) == (1, 1)
    assert told == (
        f"loom: could not reach the head at n1:{PORT} in 2 s: it does not know our key: share "
        "$LOOM_HOME, or set LOOM_LAUNCH_TOKEN\n"
    )
    assert re.search(r"no agent in 1\d s: nothing was received from it", alone)
    assert launches.lives() == {}


def test_noise_at_the_meeting_point_disturbs_nobody(launches: Launches) -> None:
    go = launches.folder / "go"
    wait = f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    head, other = pair(launches, "--nnodes", "2", launches.script(wait + SAY))
    launches.until_up(4)

    for noise in ("GET / HTTP/1.0", "\\0\\0\\0\\0\\0\\0", "\\0\\0\\0\\002\\0\\0{}", "\\377" * 64):
        words = f"printf '{noise}\\r\\n\\r\\n' > /dev/tcp/n1/{PORT}"
        launches.cluster.run("n3", ["bash", "-c", words])
    go.touch()

    assert (said(head)[0], said(other)[0]) == (
        ["rank 0 of n1", "rank 1 of n1"],
        ["rank 2 of n2", "rank 3 of n2"],
    )


def test_each_launch_hands_signals_to_its_own_ranks(launches: Launches) -> None:
    train = launches.script(
        "import signal, time\n"
        "def note(what): open(os.environ['REPORTS'] + f'/../{what}{told[\"RANK\"]}', 'w').close()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: note('got'))\n"
        "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))\n"
        "note('ready')\n"
        "while True: time.sleep(0.01)\n"
    )
    head, other = pair(launches, "--nnodes", "2", train)
    until(lambda: len(list(launches.folder.glob("ready*"))) == 4)

    os.kill(other.pid, signal.SIGUSR1)
    until(lambda: len(list(launches.folder.glob("got*"))) == 2)
    for process in (head, other):
        os.kill(process.pid, signal.SIGUSR2)

    assert (head.wait(LIMIT), other.wait(LIMIT)) == (0, 0)
    assert sorted(path.name for path in launches.folder.glob("got*")) == ["got2", "got3"]


def test_output_goes_on_behind_an_agent_that_was_killed(launches: Launches) -> None:
    go, logs = launches.folder / "go", launches.folder / "D"
    wait = f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    words = ["--nnodes", "2", "--tee", "3", "--log-dir", logs, launches.script(wait + SAY)]
    head, other = pair(launches, *words)
    launches.until_up(4)
    agent = launches.tree("n2")["agent"]

    os.kill(agent, signal.SIGKILL)
    until(lambda: launches.tree("n2").get("agent") not in (None, agent))
    go.touch()

    assert said(other)[0] == ["[default2]:rank 2 of n2", "[default3]:rank 3 of n2"]
    assert head.wait(LIMIT) == 0
    copies = logs.glob(f"{launches.app_id}_1/attempt_0/*/stdout.log")
    assert sorted(path.read_text() for path in copies) == ["rank 2 of n2\n", "rank 3 of n2\n"]


def test_a_launch_that_is_told_to_end_leaves_the_job(launches: Launches) -> None:
    head, other = pair(launches, "--nnodes", "2", launches.script(STAY))
    launches.until_up(4)

    os.kill(other.pid, signal.SIGTERM)

    assert other.wait(LIMIT) == 128 + signal.SIGTERM
    assert head.wait(LIMIT) == 1
    (lost,) = [event for event in launches.events() if event["event"] == "node_lost"]
    assert lost["evidence"] == "the launch there has ended"
