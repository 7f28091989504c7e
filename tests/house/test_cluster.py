import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness.cluster import Cluster
from ..harness.home import until

ROOT = Path(__file__).resolve().parents[2]
ALL = ["n1", "n2", "n3", "n4"]
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 5)"
ALL_REDUCE = """
import json, os, socket, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
seen = [os.environ["RANK"], socket.gethostname(), os.environ["MASTER_ADDR"], total.item()]
open(f"{sys.argv[1]}/rank{dist.get_rank()}", "w").write(json.dumps(seen))
dist.destroy_process_group()
"""
ABANDON = """
import time
from tests.harness.cluster import Cluster
hosts = Cluster(2).__enter__()
sleeper = hosts.popen("n1", ["sleep", "1000"])
while open(f"/proc/{sleeper.pid}/comm").read() != "sleep\\n":
    time.sleep(0.01)
print(hosts.folder, flush=True)
time.sleep(1000)
"""


def processes_with(mark: str) -> set[int]:
    """Return every process that carries the name of the cluster's folder."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if f"LOOM_TEST_HOSTS={mark}".encode() in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parts[2]))
    return found


def inhabitants(nets: set[str]) -> set[int]:
    """Return every process that lives in one of these network namespaces."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(entry) in nets:
                found.add(int(entry.parts[2]))
    return found


def traces(place: Path) -> list[str]:
    """Return what hosts could leave on the machine itself: interfaces and mounts."""
    links = [name for _, name in socket.if_nameindex() if name in ALL]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return links + [line for line in mounts if place.name in line]


def abandon() -> tuple[subprocess.Popen[str], Path]:
    """Start a program that raises hosts and stays; return it and the folder of its hosts."""
    words = [sys.executable, "-c", ABANDON]
    owner = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    return owner, Path(owner.stdout.readline().strip())


def test_every_host_has_its_own_name_address_and_interfaces(cluster: Cluster) -> None:
    script = "hostname; ip -4 -oneline -brief address show dev eth0; ls /sys/class/net"

    said = {host: cluster.run(host, ["sh", "-c", script]).stdout.split() for host in ALL}

    assert {host: (words[0], words[3], words[4:]) for host, words in said.items()} == {
        host: (host, f"10.77.0.1{host[1]}/24", ["eth0", "lo"]) for host in ALL
    }
    assert (
        len({cluster.run(h, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout for h in ALL}) == 4
    )


def test_a_host_finds_the_others_by_name(cluster: Cluster) -> None:
    done = cluster.run("n1", ["getent", "ahostsv4", "ctl", "n4"])

    assert {tuple(line.split()[:2]) for line in done.stdout.splitlines()} == {
        ("10.77.0.1", "STREAM"), ("10.77.0.1", "DGRAM"), ("10.77.0.1", "RAW"),
        ("10.77.0.14", "STREAM"), ("10.77.0.14", "DGRAM"), ("10.77.0.14", "RAW"),
    }  # fmt: skip


@pytest.mark.parametrize(("address", "reached"), [("127.0.0.1", [0, 1]), ("0.0.0.0", [0, 0])])
def test_a_loopback_is_one_hosts_own_and_an_address_is_everyones(
    address: str, reached: list[int], cluster: Cluster
) -> None:
    server = cluster.popen("n2", [sys.executable, "-c", LISTEN, address])
    assert server.stdout
    assert server.stdout.readline() == "listening\n"

    target = {"127.0.0.1": "127.0.0.1", "0.0.0.0": "n2"}[address]
    codes = [
        cluster.run(host, [sys.executable, "-c", CONNECT, target]).returncode
        for host in ("n2", "n1")
    ]

    assert codes == reached


def test_shared_memory_and_run_are_a_hosts_own_and_files_are_shared(
    cluster: Cluster, tmp_path: Path
) -> None:
    name = f"shared-{os.getpid()}"
    paths = [f"/dev/shm/{name}", f"/run/{name}", str(tmp_path / name)]

    cluster.run("n1", ["touch", *paths])
    seen = {host: cluster.run(host, ["ls", *paths]).stdout.split() for host in ("n1", "n2")}
    cluster.run("n1", ["rm", *paths])  # the hosts stay for the tests that follow

    assert seen == {"n1": paths, "n2": [paths[2]]}
    assert not Path(paths[0]).exists()


def test_a_host_neither_sees_nor_kills_the_processes_of_another(cluster: Cluster) -> None:
    other = cluster.popen("n2", ["sleep", "1000"])

    killed = cluster.run("n1", ["kill", "-9", str(other.pid)])
    listed = cluster.run("n1", ["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout.split()

    assert (killed.returncode, other.poll()) == (1, None)
    assert "sleep" not in listed
    assert cluster.host_of(other.pid) == "n2"
    until(lambda: (cluster.pids("n1"), cluster.pids("n2")) == (set(), {other.pid}))
    assert cluster.host_of(os.getpid()) is None


def test_a_command_gets_its_environment_folder_and_input(cluster: Cluster, tmp_path: Path) -> None:
    script = 'echo "$WORD $(pwd)"; cat; exit 3'

    done = cluster.run("n1", ["sh", "-c", script], env={"WORD": "a b"}, cwd=tmp_path, stdin="in\n")

    assert (done.returncode, done.stdout, done.stderr) == (3, f"a b {tmp_path}\nin\n", "")


def test_a_command_that_takes_too_long_is_killed(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("n1", ["sh", "-c", "sleep 1000 & wait"], timeout=0.2)

    until(lambda: not cluster.pids("n1"))


def test_a_private_folder_hides_what_the_hosts_shared(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    cluster.private(tmp_path, ["n1", "n2"])

    cluster.run("n1", ["touch", tmp_path / "mine"])
    seen = {host: cluster.run(host, ["ls", tmp_path]).stdout for host in ("n1", "n2", "n3")}
    cluster.reset()

    assert seen == {"n1": "mine\n", "n2": "", "n3": "shared\n"}
    assert cluster.run("n1", ["ls", tmp_path]).stdout == "shared\n"


def test_a_killed_host_has_no_process_left_and_can_boot(ssh_cluster: Cluster) -> None:
    mine = ssh_cluster.popen("n2", ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
    until(lambda: len(ssh_cluster.pids("n2")) == 3)

    ssh_cluster.kill_host("n2")
    dead = ssh_cluster.run("n1", ["ssh", "n2", "true"])
    ssh_cluster.boot("n2")

    assert mine.wait(5) in (-signal.SIGKILL, 128 + signal.SIGKILL)  # nsenter may hear of it first
    assert dead.returncode == 255
    assert "Connection refused" in dead.stderr
    until(lambda: ssh_cluster.run("n1", ["ssh", "n2", "true"]).returncode == 0)


def test_ssh_leads_from_any_host_to_any_other(ssh_cluster: Cluster) -> None:
    plain = ssh_cluster.run("n1", ["ssh", "n3", "hostname"])
    config = ssh_cluster.run(
        "ctl", ["/usr/bin/ssh", "-F", ssh_cluster.ssh_config, "n2", "hostname"]
    )
    twice = ssh_cluster.run("n4", ["ssh", "n1", "ssh n2 hostname"])

    said = [(done.returncode, done.stdout, done.stderr) for done in (plain, config, twice)]
    assert said == [(0, "n3\n", ""), (0, "n2\n", ""), (0, "n2\n", "")]


def test_a_cut_host_is_silent_until_it_is_mended(ssh_cluster: Cluster) -> None:
    reach = ["ssh", "-o", "ConnectTimeout=1", "n2", "hostname"]
    whole = ssh_cluster.run("n1", reach).returncode

    ssh_cluster.cut("n2")
    cut = ssh_cluster.run("n1", reach)
    beside = ssh_cluster.run("n1", ["ssh", "n3", "hostname"]).stdout
    ssh_cluster.mend("n2")

    assert (whole, cut.returncode, cut.stdout, beside) == (0, 255, "", "n3\n")
    until(lambda: ssh_cluster.run("n1", reach).stdout == "n2\n")


def test_a_shaped_link_is_slow(ssh_cluster: Cluster) -> None:
    ssh_cluster.shape("n2", "8mbit")

    script = "start=$(date +%s%N); ssh n2 head -c 1500000 /dev/zero >/dev/null;"
    done = ssh_cluster.run("n1", ["sh", "-c", f"{script} echo $(($(date +%s%N) - start))"])

    assert 1.0 < int(done.stdout) / 1e9 < 20


def test_srun_gives_every_rank_its_own_host(slurm_cluster: Cluster) -> None:
    script = 'echo "$SLURM_PROCID $SLURMD_NODENAME $(hostname)"'

    done = slurm_cluster.salloc(4, ["srun", "--label", "sh", "-c", script])

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{n}: {n} n{n + 1} n{n + 1}" for n in range(4)]


def test_a_job_that_a_test_left_is_gone_after_it(slurm_cluster: Cluster) -> None:
    job = slurm_cluster.popen("ctl", ["salloc", "--nodes=4", "srun", "sleep", "1000"])
    until(lambda: all(slurm_cluster.pids(host) for host in ALL))
    slurm_cluster.kill_host("n2")
    slurm_cluster.cut("n3")

    slurm_cluster.reset()

    assert job.poll() is not None
    assert [slurm_cluster.pids(host) for host in slurm_cluster.addresses] == [set()] * 5
    assert slurm_cluster.salloc(4, ["true"]).returncode == 0


@pytest.mark.needs("mpi")
def test_mpirun_starts_a_rank_on_every_host(ssh_cluster: Cluster, tmp_path: Path) -> None:
    script = 'echo "$OMPI_COMM_WORLD_RANK $(hostname)"'
    file = ssh_cluster.hostfile(tmp_path / "hosts")

    words = ["mpirun.openmpi", "--hostfile", str(file), "-np", "4", "sh", "-c", script]
    done = ssh_cluster.run("n1", words)

    said = [line for line in done.stderr.splitlines() if "setpgid" not in line]  # a race of its own
    assert (done.returncode, said) == (0, [])
    assert sorted(done.stdout.splitlines()) == [f"{n} n{n + 1}" for n in range(4)]


@pytest.mark.needs("torch")
def test_torchrun_reduces_over_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALL_REDUCE)
    options = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=10.77.0.11", "--master-port=7010"]
    words = [sys.executable, "-m", "torch.distributed.run", *options]

    nodes = [
        cluster.popen(host, [*words, f"--node-rank={rank}", tmp_path / "train.py", tmp_path])
        for rank, host in enumerate(("n1", "n2"))
    ]
    said = [node.communicate(timeout=100)[1] for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], said
    assert [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)] == [
        ["0", "n1", "10.77.0.11", 3.0],
        ["1", "n2", "10.77.0.11", 3.0],
    ]


def test_two_clusters_side_by_side_do_not_meet(cluster: Cluster) -> None:
    with Cluster(1) as other:
        server = other.popen("n1", [sys.executable, "-c", LISTEN, "0.0.0.0"])
        assert server.stdout
        assert server.stdout.readline() == "listening\n"

        codes = [
            hosts.run("ctl", [sys.executable, "-c", CONNECT, "10.77.0.11"]).returncode
            for hosts in (other, cluster)
        ]

    assert codes == [0, 1]


@pytest.mark.process
@pytest.mark.needs("netns")
@pytest.mark.needs("ssh")
@pytest.mark.needs("slurmd")
def test_nothing_is_left_of_a_cluster_that_has_ended() -> None:
    with Cluster(2) as hosts:
        hosts.with_ssh().with_slurm()
        hosts.popen("n1", ["sleep", "1000"])
        hosts.popen("ctl", ["salloc", "--nodes=2", "srun", "sleep", "1000"])
        until(lambda: hosts.pids("n2"))
        place, during = hosts.folder, processes_with(hosts.folder.name)
        nets = set()
        for pid in during:
            with contextlib.suppress(OSError):  # it has ended
                nets.add(os.readlink(f"/proc/{pid}/ns/net"))

    assert (len(during) > 10, len(nets)) == (True, 3)
    assert (processes_with(place.name), inhabitants(nets)) == (set(), set())
    assert (place.exists(), traces(place)) == (False, [])


@pytest.mark.process
@pytest.mark.needs("netns")
def test_hosts_that_come_up_by_half_go_down_again() -> None:
    hosts = Cluster(2)
    hosts.addresses["n2"] = "nowhere"

    with pytest.raises(RuntimeError, match="n2: ip -batch"):
        hosts.__enter__()

    place = hosts.folder
    assert (processes_with(place.name), place.exists(), traces(place)) == (set(), False, [])


@pytest.mark.process
@pytest.mark.needs("netns")
def test_a_killed_owner_takes_its_hosts_along_and_the_next_one_clears_its_folder() -> None:
    owner, place = abandon()
    started = processes_with(place.name)
    with Cluster(1):
        beside = (processes_with(place.name), place.exists())

    owner.kill()
    owner.communicate()
    until(lambda: not processes_with(place.name))
    with Cluster(1):
        after = place.exists()

    assert len(started) == 7  # a holder and a first process on ctl, n1 and n2; sleep
    assert (beside, after) == ((started, True), False)


@pytest.mark.process
@pytest.mark.needs("netns")
def test_what_outlives_a_killed_owner_is_ended_by_the_next_one() -> None:
    owner, place = abandon()
    started = processes_with(place.name)
    for pid in started:
        os.kill(pid, signal.SIGSTOP)  # they do not notice that the owner is gone

    owner.kill()
    owner.communicate()
    outlived = processes_with(place.name)
    with Cluster(1):
        after = (processes_with(place.name), place.exists())

    assert (outlived, after) == (started, (set(), False))
