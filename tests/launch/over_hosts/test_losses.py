"""What happens to a job over hosts when something that carries it is gone."""

import os
import signal
import time

import pytest

from ...harness.home import allowed, until
from ...harness.host_launches import LIMIT, STAY, Launches, end

TWICE = """
import signal, time
if told["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("first", flush=True)
    while True:
        signal.pause()
print("second of", told["WORLD_SIZE"], flush=True)
"""


def names(launches: Launches) -> list[str]:
    return [event["event"] for event in launches.events()]


def test_ranks_go_on_when_their_agent_is_killed(launches: Launches) -> None:
    go = launches.folder / "go"
    train = launches.script(
        f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "print('done', told['RANK'], flush=True)"
    )
    launch = launches.launch("n1", "--hostfile", launches.hostfile(n1=1, n2=2), train)
    launches.until_up(3)
    before, ranks = launches.tree("n2"), launches.ranks_on("n2")

    os.kill(before["agent"], signal.SIGKILL)
    until(lambda: launches.tree("n2").get("agent") not in (None, before["agent"]))
    go.touch()

    assert launch.wait(LIMIT) == 0
    assert len(ranks) == 2
    assert [len(lives) for lives in launches.lives().values()] == [1, 1, 1]
    assert "done 1\n" in launches.log(1, 0)
    assert "done 2\n" in launches.log(1, 1)


def test_a_keeper_that_is_killed_costs_a_restart(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=1)
    launch = launches.launch(
        "n1", "--hostfile", hosts, "--max-restarts", "1", launches.script(TWICE)
    )
    launches.until_up(2)

    os.kill(launches.tree("n2")["keeper"], signal.SIGKILL)

    assert launch.wait(LIMIT) == 0
    assert [len(lives) for lives in launches.lives().values()] == [2, 2]


@pytest.mark.parametrize("how", ["everything of the job", "the host"])
def test_a_lost_node_is_replaced_by_a_spare_with_the_evidence(launches: Launches, how: str) -> None:
    hosts = launches.hostfile(n1=1, n2=1, n3=1)
    words = ["--hostfile", hosts, "--nnodes", "2", "--max-restarts", "1", launches.script(TWICE)]
    launch = launches.launch("n1", *words)
    launches.until_up(2)

    launches.kill("n2", daemons=how == "the host")

    assert launch.wait(LIMIT) == 0
    assert launches.places() == {0: ("n1", 0), 1: ("n3", 0)}
    assert [one["WORLD_SIZE"] for one in launches.told().values()] == ["2", "2"]
    (moved,) = [event for event in launches.events() if event["event"] == "node_replaced"]
    assert (moved["lost"], moved["spare"]) == ("n2", "n3")
    assert "agent" in moved["evidence"] or "Connection to n2 closed" in moved["evidence"]


def test_with_fewer_nodes_allowed_the_job_goes_on_smaller(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=1, n3=1)
    words = ["--hostfile", hosts, "--nnodes", "2:3", "--max-restarts", "1", launches.script(TWICE)]
    launch = launches.launch("n1", *words)
    launches.until_up(3)

    launches.kill("n2")

    assert launch.wait(LIMIT) == 0
    assert [life["WORLD_SIZE"] for life in launches.lives()[0]] == ["3", "2"]
    second = {rank: lives[1]["host"] for rank, lives in launches.lives().items() if lives[1:]}
    assert second == {0: "n1", 1: "n3"}


def test_without_a_spare_the_job_fails_and_says_which_node(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=1)
    words = ["--hostfile", hosts, "--max-restarts", "3", launches.script(STAY)]
    launch = launches.launch("n1", *words)
    launches.until_up(2)

    launches.kill("n2")

    assert launch.wait(LIMIT) == 1
    assert launches.record()["reason"] == "node_lost_n2"
    assert "n2" in (launch.stderr.read() if launch.stderr else "")


def test_a_cut_link_is_noticed_and_the_cut_ranks_end_by_themselves(launches: Launches) -> None:
    launch = launches.launch(
        "n1", "--hostfile", launches.hostfile(n1=1, n2=2), launches.script(STAY)
    )
    launches.until_up(3)
    assert len(launches.ranks_on("n2")) == 2

    launches.cluster.cut("n2")
    began = time.monotonic()

    assert launch.wait(LIMIT) == 1
    noticed = time.monotonic() - began
    until(lambda: not launches.ranks_on("n2"))
    until(lambda: not launches.ours("n2"))
    launches.cluster.mend("n2")
    assert noticed < allowed(15)
    assert launches.record()["reason"] == "node_lost_n2"


@pytest.mark.parametrize("victim", ["launch process", "command"])
def test_no_rank_outlives_what_launched_it(launches: Launches, victim: str) -> None:
    launch = launches.launch(
        "n1", "--hostfile", launches.hostfile(n1=1, n2=1, n3=1), launches.script(STAY)
    )
    launches.until_up(3)
    ranks = {host: launches.ranks_on(host) for host in ("n1", "n2", "n3")}

    if victim == "command":
        end(launch)
    else:
        os.kill(launches.launch_process(), signal.SIGKILL)
    began = time.monotonic()
    until(lambda: not any(launches.ranks_on(host) for host in ranks))

    assert time.monotonic() - began < allowed(5)
    assert [len(pids) for pids in ranks.values()] == [1, 1, 1]
    launch.wait(LIMIT)
    until(lambda: launches.record()["state"] in ("FAILED", "CANCELLED"))
    assert launches.record()["reason"] == "launcher_lost"
