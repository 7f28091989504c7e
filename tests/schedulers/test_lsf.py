"""Jobs on a fake LSF that is strict with words and runs what it is given, on four hosts."""

import json
import re
from pathlib import Path

import pytest

from ..harness.cluster import Cluster
from ..harness.home import until
from .engine_jobs import HOLD, LIMIT, LOGIN, ODD, SECRET, TRAINING
from .lsf_jobs import LsfJobs


@pytest.fixture
def jobs(lsf_cluster: Cluster, home: Path, tmp_path: Path) -> LsfJobs:
    return LsfJobs(lsf_cluster, home, tmp_path)


def test_a_script_is_submitted_run_shown_read_and_removed(jobs: LsfJobs) -> None:
    train = jobs.script("print('out', os.environ['RANK'])\nprint('bad', file=sys.stderr)\n" + HOLD)
    odd = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    words = (*odd, "-e", "API_KEY", "-cfg", "lsf_queue=gpu,description=it's so", train)
    source = jobs.repository()
    secret = {"API_KEY": SECRET}

    handle = jobs.submit("-n", "4", "--ppn", "2", *words, "a b", "$(touch pwned)", "", env=secret)
    until(lambda: len(jobs.told()) == 4)
    seen, (stored,) = jobs.command_lines(), jobs.stored()
    running, listed = jobs.shown(handle), jobs.said("ls", "-s", "lsf")
    refused = jobs.loom("rm", handle)
    follower = jobs.start("logs", "-f", handle)
    Path("go").touch()
    ended = jobs.ended(handle)

    assert ended["state"] == "COMPLETED", jobs.output(handle)
    jobs.whole(handle, follower)
    jobs.is_from(ended, *source)
    assert (stored["queue"], stored["vendor"]["description"]) == ("gpu", "it's so")
    assert len([line for line in seen if "blaunch" in line]) >= 1
    assert len([line for line in seen if "train.py" in line]) >= 4
    places = (*seen, json.dumps(stored), jobs.output(handle))
    assert [place for place in places if SECRET in place] == []
    assert running["state"] == "RUNNING"
    assert [(one["replica"], one["node"]) for one in running["replicas"]] == [(0, "n1"), (1, "n2")]
    assert handle in listed
    assert (refused.returncode, "stop it first" in refused.stderr) == (2, True)
    assert jobs.said("logs", f"{handle}/train/1", "--regex", "out 3") == "[rank3]: out 3\n"
    assert jobs.said("rm", handle) == f"{handle} removed\n"
    assert not Path(ended["folder"]).exists()


def test_refusals_limits_stops_and_arrays_are_told_in_lsfs_own_words(jobs: LsfJobs) -> None:
    train = jobs.script("print('task', os.environ['LSB_JOBINDEX'])\n" + HOLD)
    hold = jobs.script(HOLD.replace("go", "never"), "holds.py")

    bad = jobs.loom("run", "-d", "-s", "lsf", "-cfg", "lsf_queue=nope", train)
    nowhere = jobs.submit("-cfg", "python=/nowhere/python", train)
    late = jobs.submit("-cfg", "walltime=2,warn=0", hold)
    held = jobs.submit("-cfg", "bsub.H=true", "--name", "later", hold)
    many = jobs.submit("-cfg", "array=3-4", "--name", "many", train)
    polite = jobs.submit("--name", "now", hold)
    until(lambda: len(jobs.told()) == 1 and _has_begun(jobs, polite))
    waits = jobs.shown(held)
    stopped = jobs.said("stop", held, "now")
    Path("go").touch()
    array, limit = jobs.ended(many), jobs.ended(late)

    assert (bad.returncode, "nope: No such queue. Job not submitted." in bad.stderr) == (1, True)
    assert jobs.ended(nowhere)["state"] == "FAILED"
    said = jobs.said("logs", nowhere)
    assert re.search(r"loom: n\d has no usable /nowhere/python: submit with one", said)
    assert (limit["state"], limit["reason"]) == ("FAILED", "time_limit")
    assert waits["state"] == "QUEUED"
    assert waits["reason"].startswith("held: The job was suspended by the user")
    assert stopped == f"{held} CANCELLED\n{polite} CANCELLED\n"
    assert jobs.shown(polite)["reason"] == "cancelled_by_user"  # it was asked, not killed
    assert array["state"] == "COMPLETED"
    assert jobs.said("logs", "many").splitlines() == [
        "[task3 rank0]: task 3",
        "[task4 rank0]: task 4",
    ]


def _has_begun(jobs: LsfJobs, handle: str) -> bool:
    run = jobs.shown(handle)["run_id"]
    return (jobs.home / "runs" / run).is_dir()


def test_a_planned_script_submitted_by_hand_is_the_same_job(jobs: LsfJobs) -> None:
    train = jobs.script("print('rank', os.environ['RANK'])")
    folder = jobs.folder / "by hand"

    options = ("-s", "lsf", "-cfg", f"job_dir={folder}", "-n", "2", "-e", "A=b c")
    jobs.said("plan", "--save", *options, train, "x y")
    said = jobs.lsf("bsub", stdin=(folder / "job.sh").read_text())
    handle = f"lsf://torchx/{said.partition('<')[2].partition('>')[0]}"
    until(lambda: len(jobs.told()) == 2)
    ended = jobs.ended(handle)

    assert (ended["state"], ended["name"]) == ("COMPLETED", "train")
    told = jobs.told()
    assert [(one["argv"], one["env"]["A"]) for one in told.values()] == [(["x y"], "b c")] * 2


def test_a_job_whose_host_dies_is_told_apart_and_runs_again_where_it_may(jobs: LsfJobs) -> None:
    train = jobs.script(HOLD.replace("while not", "while os.uname().nodename == 'n1' and not"))
    once = jobs.submit("--name", "once", "-cfg", "warn=0,hosts=n1", train)
    again = jobs.submit("--name", "again", train)
    until(lambda: all(jobs.shown(one)["replicas"][0]["node"] == "n1" for one in (once, again)))
    until(lambda: all(_has_begun(jobs, one) for one in (once, again)))

    jobs.cluster.kill_host("n1")
    ended = jobs.ended(again)
    unknown = jobs.shown(once)
    jobs.cluster.boot("n1")
    lost = jobs.ended(once)

    assert (ended["state"], ended["replicas"][0]["node"]) == ("COMPLETED", "n2")
    assert (unknown["state"], unknown["reason"]) == ("UNKNOWN", "host_unreachable")
    assert (lost["state"], lost["reason"]) == ("FAILED", "node_failure")


@pytest.mark.needs("torch")
@pytest.mark.needs("ssh")
def test_a_training_over_hosts_is_changed_warned_and_goes_on(jobs: LsfJobs) -> None:
    jobs.cluster.with_ssh()

    handle = jobs.submit("-n", "2", "--ppn", "1", TRAINING, env=jobs.plane)
    until(lambda: jobs.trains((1, 1)))
    changed = jobs.said("set", handle, "lr=0.01", env=jobs.plane)
    jobs.lsf("bkill", "-s", _warning(jobs), handle.rpartition("/")[2])
    until(lambda: jobs.trains((2, 2)))
    resumed = jobs.shown(handle)
    jobs.said("stop", handle, env=jobs.plane)

    at = int(re.findall(r"lr 0.05 -> 0.01 at step (\d+) on ranks 0-1", changed)[0])
    for rank in range(2):
        _, before = jobs.lives(rank)[0]
        assert next(step for step, lr in before if lr == 0.01) == at
    _check_lives(jobs, handle, lr=0.01)
    assert resumed["restarts"] >= 1
    assert jobs.shown(handle)["state"] == "CANCELLED"


def _warning(jobs: LsfJobs) -> str:
    """Return the signal that LSF was asked to send before the limit."""
    (stored,) = jobs.stored()
    name, _ = stored["vendor"]["warning"]
    return str(name)


def _check_lives(jobs: LsfJobs, handle: str, lr: float) -> None:
    """Each rank was on its host twice, and has gone on where it was saved."""
    saved = int(re.findall(r"saved at step (\d+), to be queued again", jobs.output(handle))[0])
    for rank, host in enumerate(("n1", "n2")):
        (first, _), (second, after) = jobs.lives(rank)
        assert (first["host"], second["host"]) == (host, host)
        assert (first["resume"], second["resume"] != "") == ("", True)
        assert after[0] == (saved, lr)


@pytest.mark.soak
@pytest.mark.needs("torch")
def test_a_time_limit_is_come_before(jobs: LsfJobs) -> None:
    """A minute of this LSF has a second."""
    words = ("-n", "2", "--ppn", "1", "-cfg", f"walltime=90,warn={60 * 50}", TRAINING)

    handle = jobs.submit(*words, env=jobs.plane)
    until(lambda: jobs.trains((2, 2)), 2 * LIMIT)
    jobs.said("stop", "--now", handle, env=jobs.plane)

    _check_lives(jobs, handle, lr=0.05)


def test_a_job_that_is_stopped_has_its_grace_on_all_hosts_and_leaves_nothing(
    jobs: LsfJobs, own_tmp: None
) -> None:
    jobs.check_stop(2)


def test_bkill_by_hand_ends_all_of_a_job_on_all_hosts(jobs: LsfJobs, own_tmp: None) -> None:
    handle = jobs.saver(2, {**LOGIN, "LOOM_PLANE": "1", "LOOM_PLANE_IDLE": "1"})

    jobs.lsf("bkill", handle.rpartition("/")[2])
    ended = jobs.ended(handle)

    assert (ended["state"], ended["reason"]) == ("CANCELLED", "cancelled")
    until(lambda: not jobs.running("torchloom"), LIMIT)


@pytest.mark.needs("torch")
@pytest.mark.needs("ssh")
def test_a_second_job_on_a_host_has_a_plane_after_the_first_has_ended(
    jobs: LsfJobs, own_tmp: None, home: Path, tmp_path: Path
) -> None:
    jobs.cluster.with_ssh()
    (tmp_path / "second").mkdir()
    second = LsfJobs(jobs.cluster, home, tmp_path / "second")
    words = ("-n", "1", "-cfg", "hosts=n1,warn=0", TRAINING)
    one = jobs.submit(*words, env={**jobs.plane, **LOGIN})
    until(lambda: jobs.trains((1,)), LIMIT)
    two = second.submit(*words, env={**second.plane, **LOGIN})
    until(lambda: second.trains((1,)), LIMIT)

    jobs.lsf("bkill", one.rpartition("/")[2])
    jobs.ended(one)
    second.kill_all("torchloom.plane")  # as where a job's end is that of its cgroup
    change = ("set", two, "lr=0.01")
    until(lambda: second.loom(*change, env={**second.plane, **LOGIN}).returncode == 0, LIMIT)
    until(lambda: second.lives(0)[-1][1][-1][1] == 0.01, LIMIT)
    second.said("stop", two, env=second.plane)

    assert [each.lives(0)[0][0]["host"] for each in (jobs, second)] == ["n1", "n1"]
    assert len(second.lives(0)) == 1
