"""Which allocation this shell is in, and whether its host file can be believed."""

from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor import cluster
from torchloom.doctor.findings import CheckFinding, CheckState


def test_a_plain_shell_is_well(place: Any) -> None:
    assert list(cluster.scheduler(place())) == [
        CheckFinding("scheduler", CheckState.OK, "no allocation: ranks run on this host")
    ]


def test_an_allocation_is_named_with_its_job_and_hosts(place: Any) -> None:
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_TASKS_PER_NODE": "4(x2)",
    }

    (found,) = cluster.scheduler(place(env=env))

    assert (found.state, found.text) == (CheckState.OK, "slurm job 7, 2 hosts, 8 ranks")


def test_a_stale_pbs_job_is_a_note_that_names_the_variable(place: Any) -> None:
    env = {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/no/such/file"}

    found = [each for each in cluster.scheduler(place(env=env)) if each.state is CheckState.NOTE]

    assert [(each.text, each.remedy) for each in found] == [
        (
            "PBS_JOBID=12.server is stale: its nodefile /no/such/file does not exist",
            "unset PBS_JOBID",
        )
    ]


def test_a_job_that_runs_elsewhere_is_told(place: Any) -> None:
    def ask(words: Any, limit: float) -> str:
        if words[0] != "squeue":
            raise FileNotFoundError(words[0])
        return "41|n[1-3]\n"

    found = list(cluster.scheduler(place(ask=ask)))

    assert [each.text for each in found] == [
        "no allocation: ranks run on this host",
        "your slurm job 41 runs on 3 other hosts",
    ]
    assert "ssh n1" in found[1].remedy


@pytest.mark.parametrize("how", ["flag", "PBS_NODEFILE", "HOSTFILE"])
def test_a_host_file_that_is_not_there_is_a_problem(how: str, place: Any) -> None:
    path = Path("/no/such/file")
    chosen = {"hostfile": path} if how == "flag" else {"env": {how: str(path)}}

    (found,) = cluster.hostfile(place(**chosen))

    assert (found.state, found.text) == (
        CheckState.PROBLEM,
        "no hosts from '/no/such/file': No such file or directory",
    )
    assert "--hostfile" in found.remedy


def test_hosts_without_an_address_are_named(place: Any, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost slots=2\nno-such-host.invalid\n")

    (found,) = cluster.hostfile(place(hostfile=path))

    assert (found.state, found.text) == (CheckState.PROBLEM, "no address for no-such-host.invalid")


def test_hosts_that_all_have_an_address_are_well(place: Any, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost\n127.0.0.1\n")

    (found,) = cluster.hostfile(place(hostfile=path))

    assert (found.state, found.text) == (CheckState.OK, "2 hosts, all with an address")
