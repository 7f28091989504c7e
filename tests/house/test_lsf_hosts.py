import shlex
from pathlib import Path

from ..harness.cluster import Cluster
from ..harness.home import until


def output(path: Path) -> str:
    """Return what a job wrote, without the report before it."""
    return path.read_text().partition("The output (if any) follows:\n\n")[2]


def run_on(cluster: Cluster, *argv: str, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run a command on ctl; it must succeed; return what it printed."""
    done = cluster.run("ctl", argv, stdin=stdin, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def known(cluster: Cluster, job: str, field: str) -> str:
    """Return a field of a job, as bjobs on ctl tells it."""
    return run_on(cluster, "bjobs", "-noheader", "-o", field, job).strip()


def bsub(cluster: Cluster, script: str, *options: str, cwd: Path) -> str:
    """Submit a script on ctl; return the job's number."""
    said = run_on(cluster, "bsub", *options, stdin=script, cwd=cwd)
    return said.partition("<")[2].partition(">")[0]


def test_blaunch_runs_tasks_on_the_hosts_of_the_job(lsf_cluster: Cluster, tmp_path: Path) -> None:
    quoted = shlex.quote("it's; a test")
    script = f"""#!/bin/bash
export OF_THE_CALLER=yes
echo $LSB_MCPU_HOSTS; sort $LSB_DJOB_HOSTFILE | uniq -c | xargs
caught=$(echo input | blaunch n3 'cat; echo $(hostname) $OF_THE_CALLER $(pwd); exit 9')
echo "code $?" $caught
blaunch -no-shell n3 echo {quoted}
blaunch hostname | sort | xargs
blaunch n2 hostname; echo "code $?"
"""
    options = ["-n", "4", "-R", "span[ptile=2]", "-m", "n1 n3", "-o", "o", "-e", "e"]

    job = bsub(lsf_cluster, script, *options, cwd=tmp_path)
    lsf_cluster.with_lsf().wait(job)

    assert known(lsf_cluster, job, "exec_host") == "2*n1:2*n3"
    assert output(tmp_path / "o").partition("\n\n\nPS:")[0].splitlines() == [
        "n1 2 n3 2",
        "2 n1 2 n3",
        f"code 9 input n3 yes {tmp_path}",
        "it's; a test",
        "n1 n1 n3 n3",
        "code 255",
    ]
    said = f"blaunch: Host <n2> is not one of the hosts of job <{job}>.\n"
    assert (tmp_path / "e").read_text() == said


def test_signals_reach_tasks_on_every_host(lsf_cluster: Cluster, tmp_path: Path) -> None:
    task = "trap 'hostname >> told; exit' USR1; touch $(hostname); while :; do sleep 0.05; done"
    (tmp_path / "task").write_text(task)
    script = "#!/bin/bash\ntrap : USR1\nblaunch -no-shell /bin/bash ./task & wait; wait"

    job = bsub(lsf_cluster, script, "-n", "3", "-R", "span[ptile=1]", cwd=tmp_path)
    until(lambda: len(list(tmp_path.glob("n?"))) == 3)
    said = run_on(lsf_cluster, "bkill", "-s", "USR1", job)
    lsf_cluster.with_lsf().wait(job)

    assert said == f"Job <{job}> is being signaled\n"
    assert sorted((tmp_path / "told").read_text().split()) == ["n1", "n2", "n3"]
    assert [lsf_cluster.pids(host) for host in ("n1", "n2", "n3")] == [set()] * 3


def test_only_what_may_rerun_runs_again_when_its_host_dies(
    lsf_cluster: Cluster, tmp_path: Path
) -> None:
    script = "echo $(hostname) ${LSB_RESTART:-first} >> ran.$LSB_JOBNAME; [ $(hostname) != n1 ] || "
    again = bsub(lsf_cluster, f"{script}sleep 1000", "-r", "-J", "again", cwd=tmp_path)
    once = bsub(lsf_cluster, f"{script}sleep 1000", "-J", "once", cwd=tmp_path)
    until(lambda: len(list(tmp_path.glob("ran.*"))) == 2)

    lsf_cluster.cut("n1")
    lsf_cluster.kill_host("n1")
    lsf_cluster.with_lsf().wait(again)
    unknown = known(lsf_cluster, once, "stat")
    status = run_on(lsf_cluster, "bhosts", "-noheader", "-o", "status", "n1").strip()
    lsf_cluster.mend("n1")
    lsf_cluster.boot("n1")
    lsf_cluster.with_lsf().wait(once)

    assert (unknown, status) == ("UNKWN", "unavail")
    assert (tmp_path / "ran.again").read_text() == "n1 first\nn2 Y\n"
    assert known(lsf_cluster, once, "exit_reason").startswith("TERM_ZOMBIE: ")
