"""A site's modules are loaded on the hosts that ranks run on, whoever brings them there."""

from pathlib import Path

import pytest

from torchloom.launch.shim import FOLDER

from ...harness.cluster import Cluster
from ...harness.host_launches import LIMIT, Launches
from .ways import MPIRUN, MPIRUN_PER_RANK, NODES, SRUN, SRUN_PER_RANK, SSH, Way

PROFILES = "/etc/profile.d"
# A module system that is another on every host, as where nodes have software of their own.
MODULE = (
    'module() { export LOADEDMODULES="$2/1.0" CUDA_ROOT="/sw/$(uname -n)/$2" '
    'PATH="/sw/$2:$PATH"; }\n'
)


def give_modules(launches: Launches, *hosts: str) -> None:
    """Have `module` on these hosts alone, and one site for all."""
    cluster: Cluster = launches.cluster
    cluster.private(PROFILES)
    for host in hosts:
        cluster.run(host, ["sh", "-c", f'printf "%s" "$1" >{PROFILES}/modules.sh', "sh", MODULE])
    table = "[mine]\nmatch = { hosts = 'ctl|n\\d' }\nmodules = ['cuda']\nenv = { NIC = 'hsn0' }\n"
    (launches.home / "sites.toml").write_text(table)


@pytest.mark.parametrize("way", [SSH, SRUN, SRUN_PER_RANK, MPIRUN, MPIRUN_PER_RANK], ids=str)
def test_every_host_loads_them_before_its_ranks(in_slurm: Launches, way: Way) -> None:
    give_modules(in_slurm, *NODES)

    done = way.run(in_slurm, in_slurm.script(""))

    assert done.returncode == 0, done.stderr
    assert "ranks start after `module load cuda`" in done.stderr
    told = {rank: one["env"] for rank, one in in_slurm.told().items()}
    assert {rank: env["CUDA_ROOT"] for rank, env in told.items()} == {
        0: "/sw/n1/cuda",
        1: "/sw/n1/cuda",
        2: "/sw/n2/cuda",
        3: "/sw/n2/cuda",
    }
    assert {tuple(env["PATH"].split(":")[:2]) for env in told.values()} == {(FOLDER, "/sw/cuda")}
    assert {(env["NIC"], env["LOOM_MODULES"]) for env in told.values()} == {("hsn0", "")}


def test_a_host_without_module_is_named_with_the_reason(launches: Launches) -> None:
    give_modules(launches, "n1")

    done = SSH.run(launches, launches.script(""))

    assert done.returncode == 1
    assert launches.record()["reason"] == "node_lost_n2"
    assert "n2: ssh ended: loom: n2 has no `module` to load cuda; remove them" in done.stderr
    assert launches.told() == {}


def test_launches_that_meet_load_them_each_on_its_host(launches: Launches) -> None:
    give_modules(launches, *NODES)
    words = ["--nnodes", "2", "--rdzv-endpoint", "n1:29733", "--ppn", "1", launches.script("")]

    started = [launches.launch(host, *words) for host in NODES]

    assert [process.wait(LIMIT) for process in started] == [0, 0]
    roots = {one["host"]: one["env"]["CUDA_ROOT"] for one in launches.told().values()}
    assert roots == {"n1": "/sw/n1/cuda", "n2": "/sw/n2/cuda"}


def test_noise_of_all_hosts_is_hidden_where_it_is_shown(launches: Launches) -> None:
    table = "[mine]\nmatch = { hosts = 'n1' }\nnoise = ['WARN of .*']\n"
    (launches.home / "sites.toml").write_text(table)
    train = launches.script("print('WARN of', told['host'])\nprint('rank', told['RANK'])")

    done = SSH.run(launches, train)

    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("[rank")]
    assert sorted(shown) == [f"[rank{n}]: rank {n}" for n in range(4)]
    assert "loom: 4 lines of known noise hidden (site mine); the logs have all" in done.stderr
    logs = Path(launches.record()["log_dir"])
    assert [path.read_text() for path in sorted(logs.glob("*/*/*/stdout.log"))] == [
        f"WARN of n{1 + rank // 2}\nrank {rank}\n" for rank in range(4)
    ]


def test_launches_that_meet_hide_and_count_each_what_it_shows(launches: Launches) -> None:
    table = "[mine]\nmatch = { hosts = 'n\\d' }\nnoise = ['WARN of .*']\n"
    (launches.home / "sites.toml").write_text(table)
    train = launches.script("print('WARN of', told['host'])\nprint('rank', told['RANK'])")
    words = ["--nnodes", "2", "--rdzv-endpoint", "n1:29733", "--ppn", "1", train]

    started = [launches.launch(host, *words) for host in NODES]
    said = [process.communicate(timeout=60) for process in started]

    assert sorted(out for out, _ in said) == ["[rank0]: rank 0\n", "[rank1]: rank 1\n"]
    note = "loom: 1 line of known noise hidden (site mine); the logs have all\n"
    assert [err.count(note) for _, err in said] == [1, 1]
