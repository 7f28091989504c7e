"""Ranks of hosts that have no plane are watched and steered like those of the host that has it."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from ...harness.home import until
from ...harness.host_launches import LIMIT, LOOM, Launches, command_line, environment_of
from ...harness.watched_job import PATIENCE, Watched

pytestmark = pytest.mark.needs("torch")
TWO = ("--nodelist=n1,n2", "--nodes=2", "--ntasks-per-node=1")
MEETING = ("--master_addr", "n1", "--master_port", "29731")
SEED = r"\bS[AOU][A-Z2-7]{56}\b"  # the secret half of a key
FORGIVING = 20.0  # seconds after its start in which a weaver holds nobody's silence against him
SOON = 60.0  # seconds; the agent of the plane's own host does not leave with the job
CUT = 2.0  # seconds; after five the launch itself gives the node up, and a machine may be slow


@pytest.fixture
def job(launches: Launches) -> Iterator[Watched]:
    """Give a job that the plane of n1 is to watch; the plane goes after it."""
    watched = Watched(launches)
    yield watched
    watched.loom("down")


def over(launches: Launches, **slots: int) -> tuple[str, ...]:
    return "--hostfile", str(launches.hostfile(**slots))


def secrets_of(job: Watched) -> set[str]:
    """Return what only agents, launch process and plane may know."""
    files = (path for path in (job.launches.home / "plane" / "keys").rglob("*") if path.is_file())
    seeds = {seed for path in files for seed in re.findall(SEED, path.read_text())}
    return seeds | job.launches.tokens()


def shown(pid: int) -> str:
    return command_line(pid) + json.dumps(environment_of(pid))


def test_a_job_over_hosts_is_seen_changed_paused_and_stopped_as_one(job: Watched) -> None:
    launches = job.launches
    launches.cluster.private(launches.home, ["n2"])
    launches.cluster.shape("n2", "10mbit")
    launch = job.start(flags=over(launches, n1=1, n2=1))

    step = job.change(0.01)
    job.loom("pause", launches.app_id)
    held = [len(job.rows(rank)) for rank in range(2)]
    at = [(0, "n1", held[0]), (1, "n2", held[1])]
    until(lambda: job.shown() == at, PATIENCE)
    devices = {one["uuid"]: one["processes"] for one in json.loads(job.loom("devices", "--json"))}
    ranks = {pid for host in ("n1", "n2") for pid in launches.ranks_on(host)}
    secrets = secrets_of(job)
    leaks = [(pid, secret) for pid in ranks for secret in secrets if secret in shown(pid)]
    told = [pid for pid in launches.cluster.pids("n2") if secrets & set(command_line(pid).split())]
    still = [len(job.rows(rank)) for rank in range(2)]
    job.loom("resume", launches.app_id)
    job.passes(1)
    job.stop()

    assert launch.wait(LIMIT) == 0
    assert job.begins(0.01) == [step, step]
    assert (held[0], held) == (held[1], still)
    used = {f"n{1 + rank}/cpu/0": [f"{launches.app_id}/train/{rank}"] for rank in range(2)}
    assert {name: users for name, users in devices.items() if users} == used
    assert (len(ranks), len(secrets), leaks, told) == (2, 7, [], [])
    until(lambda: job.stored() == job.logged(), SOON)
    until(lambda: job.agents() == {("n1", "up"), ("n2", "left")})
    assert job.news_of("n2") == ["agent_up", "agent_left"]


def test_a_killed_relay_a_cut_link_and_another_plane_lose_nothing(job: Watched) -> None:
    launches = job.launches
    launch = job.start(flags=over(launches, n1=1, n2=1))

    before = job.relay("n2")
    assert before
    os.kill(before, signal.SIGKILL)
    until(lambda: job.relay("n2") not in (None, before))
    job.reconnected()
    after_kill = job.change(0.01)
    launches.cluster.cut("n2")
    time.sleep(CUT)
    launches.cluster.mend("n2")
    job.passes(5)
    job.reconnected()
    after_cut = job.change(0.02)
    job.loom("down")
    job.passes(5)
    job.loom("up")
    job.reconnected()
    after_down = job.change(0.03)
    job.stop()

    assert launch.wait(LIMIT) == 0
    assert [job.begins(lr) for lr in (0.01, 0.02, 0.03)] == [
        *([after_kill] * 2, [after_cut] * 2, [after_down] * 2),
    ]
    until(lambda: job.stored() == job.logged(), SOON)
    assert [len(lives) for lives in launches.lives().values()] == [1, 1]
    until(lambda: job.news_of("n2")[-1] == "agent_left")
    assert [path.name for path in (launches.home / "plane" / "spool").iterdir()] == ["n1"]


def test_from_a_login_node_ranks_of_all_nodes_are_steered(in_slurm: Launches) -> None:
    job = Watched(in_slurm, "ctl")
    launch = job.start("salloc", "--quiet", *TWO)

    step = job.change(0.01)
    relays = [job.relay(host) is not None for host in ("n1", "n2")]
    job.stop()

    assert launch.wait(PATIENCE) == 0
    assert job.begins(0.01) == [step, step]
    assert relays == [True, True]
    until(lambda: job.stored() == job.logged(), SOON)
    job.loom("down")


def test_a_plane_that_other_hosts_reach_is_spoken_to_at_its_own_address(job: Watched) -> None:
    address = job.launches.cluster.addresses["n1"]
    job.loom("up", "--host", address, "--trust-operators")
    launch = job.start(flags=over(job.launches, n1=1, n2=1))

    step = job.change(0.01)
    look = ["ss", "-Htn", "state", "established", "dport", "=", ":4222"]
    to_nats = job.launches.cluster.run("n2", look).stdout
    job.stop()

    assert launch.wait(LIMIT) == 0
    assert job.begins(0.01) == [step, step]
    assert to_nats.count(f"{address}:4222") == 1
    until(lambda: job.stored() == job.logged(), SOON)


def test_launches_that_meet_are_steered_by_the_plane_of_their_head(job: Watched) -> None:
    words = (*LOOM, "launch", "--nnodes", "2", "--nproc_per_node", "1", *MEETING)
    met = [job.begin(f"n{1 + n}", *words, "--node_rank", str(n)) for n in range(2)]
    job.ready()

    step = job.change(0.01)
    job.stop()

    assert [one.wait(LIMIT) for one in met] == [0, 0]
    assert job.begins(0.01) == [step, step]
    until(lambda: job.stored() == job.logged(), SOON)


@pytest.mark.soak
def test_a_node_that_falls_silent_is_lost_with_the_evidence(job: Watched) -> None:
    launches = job.launches
    job.loom("up")
    began = time.monotonic()
    launch = job.start(flags=over(launches, n1=1, n2=1))
    until(lambda: time.monotonic() - began > FORGIVING)

    launches.cluster.cut("n2")
    until(lambda: job.news_of("n2") == ["agent_up", "agent_lost"])
    lost = time.monotonic()
    seen = {one["rank"]: (one["state"], one["reason"]) for one in job.ask("ranks")}

    assert launch.wait(LIMIT) == 1
    launches.cluster.mend("n2")
    assert launches.record()["reason"] == "node_lost_n2"
    assert time.monotonic() - lost > 1  # the plane sees it first, and does nothing about it
    assert [state for state, _ in seen.values()] == ["up", "lost"]
    assert seen[1][1].startswith("agent_lost_n2-")
