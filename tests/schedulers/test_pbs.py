"""Jobs on a strict fake of PBS with four hosts, submitted from a fifth."""

import re
from pathlib import Path

import pytest

from ..cluster import Cluster
from ..living import until
from .engine_jobs import HOLD, LIMIT, ODD, SECRET, TRAINING
from .pbs_jobs import PbsJobs


@pytest.fixture
def jobs(pbs_cluster: Cluster, home: Path, tmp_path: Path) -> PbsJobs:
    return PbsJobs(pbs_cluster, home, tmp_path)


def test_a_script_is_submitted_run_shown_read_and_removed(jobs: PbsJobs) -> None:
    train = jobs.script("print('out', os.environ['RANK'])\nprint('bad', file=sys.stderr)\n" + HOLD)
    odd = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    words = (*odd, "-e", "API_KEY", "-cfg", "queue=gpu,account=it's so,walltime=1:00:00", train)
    source = jobs.repository()

    handle = jobs.submit(
        "-n", "4", "--ppn", "2", *words, "a b", "$(touch pwned)", "", env={"API_KEY": SECRET}
    )
    until(lambda: len(jobs.told()) == 4)
    seen, record = jobs.command_lines(), jobs.known(handle)
    running, listed = jobs.shown(handle), jobs.said("ls", "-s", "pbs")
    refused = jobs.loom("rm", handle)
    follower = jobs.start("logs", "-f", handle)
    Path("go").touch()
    ended = jobs.ended(handle)

    assert ended["state"] == "COMPLETED", jobs.output(handle)
    jobs.whole(handle, follower)
    jobs.is_from(ended, *source)
    assert len([line for line in seen if "train.py" in line]) >= 4
    assert (record["Account_Name"], record["queue"]) == ("it's so", "gpu")
    assert [x for x in (*seen, str(record), jobs.output(handle)) if SECRET in x] == []
    assert running["state"] == "RUNNING"
    assert [(one["replica"], one["node"]) for one in running["replicas"]] == [(0, "n1"), (1, "n2")]
    assert handle in listed
    assert (refused.returncode, "stop it first" in refused.stderr) == (2, True)
    assert jobs.said("logs", f"{handle}/train/1", "--regex", "out 3") == "[rank3]: out 3\n"
    assert jobs.said("rm", handle) == f"{handle} removed\n"
    assert not Path(ended["folder"]).exists()


def test_refusals_failures_limits_and_stops_are_told_in_pbs_words(jobs: PbsJobs) -> None:
    train = jobs.script(HOLD)

    bad = jobs.loom("run", "-d", "-s", "pbs", "-cfg", "queue=nowhere", train)
    late = jobs.submit("-cfg", "walltime=2,warn=0", "--name", "late", train)
    fails = jobs.submit(jobs.script("sys.exit(7)", "fails.py"))
    nowhere = jobs.submit("-cfg", "python=/nowhere/python", train)
    held = jobs.submit("-cfg", "qsub.h=true", train)
    after = jobs.submit("-cfg", f"dependency=afterok:{held.rpartition('/')[2]}", train)
    waits = [jobs.shown(handle) for handle in (held, after)]
    running = jobs.submit("--name", "now", train)
    until(lambda: jobs.shown(running)["state"] == "RUNNING" and jobs.told())
    stopped = jobs.said("stop", held, "now")
    ended = [jobs.ended(handle) for handle in (late, fails, nowhere, after)]

    assert (bad.returncode, "qsub: Unknown queue" in bad.stderr) == (1, True)
    assert [(one["state"], one["reason"]) for one in waits] == [
        ("QUEUED", "held: Insufficient amount of resource: ncpus"),
        ("QUEUED", "dependency: Insufficient amount of resource: ncpus"),
    ]
    assert stopped == f"{held} CANCELLED\n{running} CANCELLED\n"
    assert [(one["state"], one["reason"]) for one in ended] == [
        ("FAILED", "time_limit"),
        ("FAILED", "exit_code_7_fails_0"),
        ("FAILED", ""),
        ("CANCELLED", "dependency_failed"),
    ]
    said = jobs.said("logs", nowhere)
    assert re.search(r"loom: n\d has no usable /nowhere/python: submit with one", said)


def test_the_tasks_of_an_array_are_runs_of_their_own(jobs: PbsJobs) -> None:
    train = jobs.script("print('task', os.environ['PBS_ARRAY_INDEX'])")

    handle = jobs.submit("-cfg", "array=3-4", "--name", "many", train)
    ended = jobs.ended(handle)

    assert (handle[-2:], ended["state"]) == ("[]", "COMPLETED")
    assert jobs.said("logs", "many").splitlines() == [
        "[task3 rank0]: task 3",
        "[task4 rank0]: task 4",
    ]
    logs = sorted(path.name for path in Path(ended["folder"]).glob("out.log*"))
    assert logs == ["out.log.3", "out.log.4"]


def test_a_job_whose_host_dies_runs_again_elsewhere_under_its_number(jobs: PbsJobs) -> None:
    handle = jobs.submit(jobs.script(HOLD))
    until(lambda: jobs.told())

    ((_, one),) = jobs.told().items()
    jobs.cluster.kill_host(one["host"])
    until(lambda: [each["host"] for each in jobs.told().values()] != [one["host"]])
    Path("go").touch()
    ended = jobs.ended(handle)

    assert (ended["state"], ended["restarts"], jobs.known(handle)["run_count"]) == (
        *("COMPLETED", 1, 2),
    )


@pytest.mark.needs("torch")
def test_a_training_submitted_by_hand_is_changed_warned_before_its_limit_and_goes_on(
    ssh_cluster: Cluster, jobs: PbsJobs
) -> None:
    strike = jobs.timer()
    folder = jobs.folder / "by hand"
    cfg = f"job_dir={folder},walltime=3600,warn=60,policy=live"

    words = ("-s", "pbs", "-n", "2", "--ppn", "1", "-cfg", cfg, TRAINING)
    jobs.said("plan", "--save", *words, env=jobs.plane)
    handle = f"pbs://torchx/{jobs.pbs('qsub', str(folder / 'job.sh')).partition('.')[0]}"
    until(lambda: jobs.trains((1, 1)), LIMIT)
    changed = jobs.said("set", handle, "lr=0.01", env=jobs.plane)
    strike.touch()
    until(lambda: jobs.trains((2, 2)), LIMIT)
    resumed, known = jobs.shown(handle), jobs.known(handle)
    jobs.said("stop", handle, env=jobs.plane)
    ended = jobs.shown(handle)

    saved = int(re.findall(r"saved at step (\d+), to be queued again", jobs.output(handle))[0])
    at = int(re.findall(r"lr 0.05 -> 0.01 at step (\d+) on ranks 0-1", changed)[0])
    assert (jobs.folder / "slept").read_text() == "3540\n" * 2
    for rank in range(2):
        (first, before), (second, after) = jobs.lives(rank)
        assert [first["host"], second["host"]] == [f"n{rank + 1}"] * 2
        assert [step for step, _ in before] == list(range(len(before)))
        assert next(step for step, lr in before if lr == 0.01) == at
        assert (bool(first["resume"]), bool(second["resume"])) == (False, True)
        assert after[0] == (saved, 0.01)
    assert (known["run_count"], resumed["restarts"]) == (2, 1)
    assert (resumed["state"], ended["state"]) == ("RUNNING", "CANCELLED")
