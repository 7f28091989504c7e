"""What a user does to a job over hosts reaches all of its ranks; what goes wrong is named."""

import os
import signal
import sys
from pathlib import Path

import pytest

from ...harness.home import until
from ...harness.host_launches import LIMIT, LOOM, STAY, Launches

SIGNALLED = """
import signal, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
print("up", flush=True)
while not seen:
    time.sleep(0.01)
print("got", *seen, flush=True)
"""
POLITE = """
import signal
def leave(*_):
    print("told to end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
print("up", flush=True)
while True:
    signal.pause()
"""
LOUD = """
for number in range(20_000):
    print(told["RANK"], number)
sys.stderr.write("last words\\n")
"""
FAILS = """
import json, time
print("before", flush=True)
if told["RANK"] == "1":
    when = {"timestamp": str(int(time.time()))}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "no gradient", "extraInfo": when}}, file)
    sys.exit(3)
import signal
while True:
    signal.pause()
"""


def up(launches: Launches, ranks: int = 2) -> None:
    """Wait until so many ranks have said that they are."""
    until(lambda: all("up\n" in launches.log(index, 0) for index in range(ranks)))


def test_signals_for_ranks_reach_those_of_all_hosts(launches: Launches) -> None:
    launch = launches.launch(
        "n1", "--hostfile", launches.hostfile(n1=1, n2=1), launches.script(SIGNALLED)
    )
    launches.until_up(2)
    up(launches)

    os.kill(launch.pid, signal.SIGUSR1)

    assert launch.wait(LIMIT) == 0
    assert [launches.log(index, 0) for index in range(2)] == ["up\ngot usr1\n"] * 2


@pytest.mark.parametrize("how", ["ctrl_c", "stop"])
def test_whoever_ends_a_job_ends_it_on_all_hosts_politely(launches: Launches, how: str) -> None:
    launch = launches.launch(
        "n1", "--hostfile", launches.hostfile(n1=1, n2=1), launches.script(POLITE)
    )
    launches.until_up(2)
    up(launches)

    if how == "ctrl_c":
        os.killpg(launch.pid, signal.SIGINT)
    else:
        words = [*LOOM, "stop", launches.app_id]
        done = launches.cluster.run("n1", words, launches.variables())
        assert done.returncode == 0, done.stderr

    assert launch.wait(LIMIT) in (1, 130)
    assert [launches.log(index, 0) for index in range(2)] == ["up\ntold to end\n"] * 2
    assert launches.record()["state"] == "CANCELLED"


def test_silence_on_all_hosts_is_a_hang(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=1)

    done = launches.run("n1", "--hostfile", hosts, "--timeout", "2", launches.script(STAY))

    assert done.returncode == 124, done.stderr
    assert launches.record()["reason"] == "idle_output_2s"


def test_a_host_that_prints_keeps_the_silent_one_from_being_a_hang(launches: Launches) -> None:
    chatty = "import time\nfor _ in range(50):\n    time.sleep(0.1)\n"
    chatty += "    if told['RANK'] == '1': print('step', flush=True)\n"
    hosts = launches.hostfile(n1=1, n2=1)

    done = launches.run("n1", "--hostfile", hosts, "--timeout", "4", launches.script(chatty))

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("home_of", ["all hosts", "the launching host alone"])
def test_logs_arrive_whole_from_hosts_that_share_no_folder(
    launches: Launches, home_of: str
) -> None:
    if home_of != "all hosts":
        launches.cluster.private(launches.home, ["n2", "n3"])
    hosts = launches.hostfile(n1=1, n2=1, n3=1)

    done = launches.run("n1", "--hostfile", hosts, launches.script(LOUD))

    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert launches.log(rank, 0) == "".join(f"{rank} {n}\n" for n in range(20_000))
        assert launches.log(rank, 0, "stderr.log") == "last words\n"
    shown = [line for line in done.stdout.splitlines() if line.startswith("[rank")]
    assert len(shown) == 60_000
    assert done.stderr.count("]: last words\n") == 3


def test_an_error_file_arrives_from_a_host_that_shares_no_folder(launches: Launches) -> None:
    launches.cluster.private(launches.home, ["n2"])
    hosts = launches.hostfile(n1=1, n2=1)

    done = launches.run("n1", "--hostfile", hosts, launches.script(FAILS))

    assert done.returncode == 3
    assert "no gradient" in launches.record()["error"]
    assert "no gradient" in launches.log(1, 0, "error.json")


@pytest.mark.parametrize("host", ["nowhere.invalid", "n3"])
def test_a_host_that_ssh_cannot_reach_is_named_with_its_words(
    launches: Launches, host: str
) -> None:
    launches.kill("n3")
    hosts = launches.hostfile(**{"n1": 1, host: 1, "n2": 1})

    done = launches.run("n1", "--hostfile", hosts, launches.script(STAY))

    assert done.returncode == 1
    assert host in done.stderr
    assert ("resolve" if host != "n3" else "refused") in done.stderr
    assert launches.lives() == {}


def test_a_host_without_our_python_is_named(launches: Launches) -> None:
    launches.cluster.private(Path(sys.executable).parent, ["n2"])
    hosts = launches.hostfile(n1=1, n2=1)

    done = launches.run("n1", "--hostfile", hosts, launches.script(STAY))

    assert done.returncode == 1
    assert "n2" in done.stderr
    assert "not found" in done.stderr
    assert launches.lives() == {}


def test_a_folder_that_is_not_there_is_named_with_its_host(launches: Launches) -> None:
    launches.cluster.private(Path.cwd(), ["n2"])
    script = launches.script(STAY)
    (launches.folder / "project" / "deep").mkdir()
    hosts = launches.hostfile(n1=1, n2=1)

    words = [*LOOM, "launch", "--hostfile", hosts, script]
    done = launches.cluster.run("n1", words, launches.variables(), cwd=Path.cwd() / "deep")

    assert done.returncode == 1
    assert "n2" in done.stderr
    assert "deep" in done.stderr
