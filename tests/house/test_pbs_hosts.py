import json
from pathlib import Path
from typing import Any

from ..harness.cluster import Cluster
from ..harness.home import until


def run_on(cluster: Cluster, *argv: str, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run a command on ctl; it must succeed; return what it printed."""
    done = cluster.run("ctl", argv, stdin=stdin, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def known(cluster: Cluster, job: str) -> dict[str, Any]:
    """Return what qstat on ctl knows of a job."""
    text = run_on(cluster, "qstat", "-x", "-f", "-F", "json", job)
    shown: dict[str, Any] = json.loads(text)["Jobs"][job]
    return shown


def test_tasks_run_on_the_other_host_and_write_to_the_jobs_output(
    pbs_cluster: Cluster, tmp_path: Path
) -> None:
    script = """#!/bin/bash
export OF_THE_CALLER=1
show='echo $(hostname) $PBS_NODENUM ${OF_THE_CALLER:-none} $(ls $PBS_NODEFILE 2>/dev/null | wc -l)'
cat $PBS_NODEFILE
caught=$(pbs_tmrsh n3 /bin/sh -c "$show; echo to stderr >&2; exit 9")
echo "code $? caught '$caught'"
pbsdsh -n 0 -- /bin/sh -c "$show"
pbs_tmrsh n2 hostname; echo "code $?"
"""
    options = ["-l", "select=1:host=n1+1:host=n3", "-N", "two"]

    job = run_on(pbs_cluster, "qsub", *options, stdin=script, cwd=tmp_path).strip()
    pbs_cluster.with_pbs().wait(job.partition(".")[0])

    assert known(pbs_cluster, job)["exec_host"] == "n1/0+n3/0"
    number = job.partition(".")[0]
    assert (tmp_path / f"two.o{number}").read_text().splitlines() == [
        "n1", "n3", "n3 1 none 0", "code 9 caught ''", "n1 0 none 1", "code 255",
    ]  # fmt: skip
    first, second = (tmp_path / f"two.e{number}").read_text().splitlines()
    assert (first, second.partition(": ")[2]) == (
        "to stderr",
        f'host "n2" is not a node in job <{job}>',
    )


def test_deleting_a_job_is_told_on_its_first_host_and_ends_its_tasks_everywhere(
    pbs_cluster: Cluster, tmp_path: Path
) -> None:
    trap = f'trap "hostname >> {tmp_path}/told; exit" TERM; touch {tmp_path}/$(hostname)'
    stay = f"until [ -e {tmp_path}/told ]; do sleep 0.01; done; exit 0"
    script = (
        f"trap '{stay}' TERM\npbsdsh -- /bin/sh -c '{trap}; while :; do sleep 0.05; done' & wait"
    )
    options = ["-l", "select=3,place=scatter"]

    job = run_on(pbs_cluster, "qsub", *options, stdin=script, cwd=tmp_path).strip()
    until(lambda: len(list(tmp_path.glob("n?"))) == 3)
    run_on(pbs_cluster, "qdel", job)
    pbs_cluster.with_pbs().wait(job.partition(".")[0])

    assert (tmp_path / "told").read_text().split() == ["n1"]
    assert [pbs_cluster.pids(host) for host in ("n1", "n2", "n3")] == [set()] * 3


def test_a_job_whose_host_is_silent_runs_again_elsewhere_and_ends_there(
    pbs_cluster: Cluster, tmp_path: Path
) -> None:
    script = f"hostname >> {tmp_path}/ran; [ $(hostname) != n1 ] || sleep 1000"

    job = run_on(pbs_cluster, "qsub", "-l", "ncpus=3", stdin=script, cwd=tmp_path).strip()
    until((tmp_path / "ran").exists)
    pbs_cluster.cut("n1")
    pbs_cluster.with_pbs().wait(job.partition(".")[0])
    nodes = json.loads(run_on(pbs_cluster, "pbsnodes", "-a", "-F", "json"))["nodes"]
    stays = pbs_cluster.pids("n1")
    pbs_cluster.mend("n1")

    assert (tmp_path / "ran").read_text() == "n1\nn2\n"
    assert (known(pbs_cluster, job)["run_count"], known(pbs_cluster, job)["Exit_status"]) == (2, 0)
    assert (nodes["n1"]["state"], nodes["n2"]["state"]) == ("down", "free")
    assert stays
    until(lambda: not pbs_cluster.pids("n1"))  # what was given up is ended when it is heard of
