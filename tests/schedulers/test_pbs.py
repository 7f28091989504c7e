"""Jobs on a strict fake of PBS with four hosts, submitted from a fifth."""

import json
import re
import signal
from pathlib import Path

import pytest

from torchloom.schedulers.pbs_scheduler import create_scheduler
from torchloom.specs.api import AppState

from ..harness.cluster import Cluster
from ..harness.cluster.pbs import Pbs
from ..harness.home import until
from .engine_jobs import HOLD, LIMIT, LOGIN, ODD, SECRET, TRAINING
from .pbs_jobs import PbsJobs

LIST = ("ls", "-s", "pbs")


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


def test_refusals_failures_limits_and_stops_are_reported_in_pbs_words(jobs: PbsJobs) -> None:
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
    listed = {job["handle"]: job for job in json.loads(jobs.said("ls", "--json"))}
    told = {job["handle"]: job["state"] for job in json.loads(jobs.said(*LIST, "--json"))}
    every = (late, fails, nowhere, after, held, running)
    assert [told[handle] for handle in every] == ["FAILED"] * 3 + ["CANCELLED"] * 3
    own = [(listed[handle]["state"], listed[handle]["reason"]) for handle in (late, running)]
    assert own == [("FAILED", "time_limit"), ("CANCELLED", "cancelled_by_user")]
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


def test_two_ranks_on_a_host_have_two_cores_and_no_warning_of_one_slot(jobs: PbsJobs) -> None:
    train, told = jobs.script("print('cores', os.environ['NCPUS'])"), jobs.folder / "told"

    handle = jobs.submit("-n", "4", "--ppn", "2", train)
    ended = jobs.ended(handle)
    chunks = (
        "-l",
        "select=2:ncpus=2",
        "-l",
        "place=scatter",
        "-j",
        "oe",
        "-o",
        str(told),
        "-W",
        "block=true",
    )
    own = ("-v", f"REPORTS={jobs.reports},LOOM_HOME={jobs.home}", "--", jobs.python, "-m")
    jobs.pbs("qsub", *chunks, *own, "torchloom", "launch", "-n", "4", "--ppn", "2", str(train))

    assert ended["state"] == "COMPLETED"
    assert jobs.known(handle)["Resource_List"]["ncpus"] == 4
    for said in (jobs.output(handle), told.read_text()):  # the second has a line a host
        assert (said.count("cores 2"), "slots" in said) == (4, False), said


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


@pytest.mark.parametrize("is_signalled", [True, False])
def test_a_job_that_is_stopped_has_its_grace_on_all_hosts_and_leaves_nothing(
    jobs: PbsJobs, own_tmp: None, is_signalled: bool
) -> None:
    jobs.check_stop(3, {} if is_signalled else jobs.without("qsig"))


def test_a_job_whose_top_process_gets_a_signal_has_its_grace_on_all_hosts(jobs: PbsJobs) -> None:
    handle = jobs.saver(2)

    jobs.pbs("qsig", "-s", "SIGTERM", handle.rpartition("/")[2])
    ended = jobs.ended(handle)

    assert [(jobs.folder / f"saved-{rank}").exists() for rank in range(2)] == [True] * 2
    assert (ended["state"], ended["reason"]) == ("CANCELLED", "cancelled_by_user")


@pytest.mark.needs("torch")
def test_a_second_job_on_a_host_and_its_next_attempt_have_a_plane(
    ssh_cluster: Cluster, jobs: PbsJobs, own_tmp: None, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    strike, second = jobs.timer(), PbsJobs(jobs.cluster, home, tmp_path / "second")
    one = jobs.submit("-n", "1", "-cfg", "warn=0", TRAINING, env={**jobs.plane, **LOGIN})
    until(lambda: jobs.trains((1,)), LIMIT)

    cfg = "walltime=3600,warn=60"
    two = second.submit("-n", "1", "-cfg", cfg, TRAINING, env={**second.plane, **LOGIN})
    until(lambda: second.trains((1,)), LIMIT)
    strike.touch()
    until(lambda: second.trains((2,)), LIMIT)
    jobs.pbs("qdel", "-W", "force", one.rpartition("/")[2])
    second.kill_all("torchloom.plane")  # as where a job's end is that of its cgroup
    words = ("set", two, "lr=0.01")
    until(lambda: second.loom(*words, env={**second.plane, **LOGIN}).returncode == 0, LIMIT)
    until(lambda: second.lives(0)[-1][1][-1][1] == 0.01, LIMIT)
    second.said("stop", two, env=second.plane)

    (first, _), (again, _) = second.lives(0)
    assert {jobs.lives(0)[0][0]["host"], first["host"], again["host"]} == {"n1"}
    assert re.search(r"saved at step \d+, to be queued again", second.output(two))


@pytest.mark.soak
@pytest.mark.needs("torch")
def test_a_job_that_is_rerun_does_not_depend_on_what_its_last_life_left(
    ssh_cluster: Cluster, jobs: PbsJobs, own_tmp: None
) -> None:
    handle = jobs.submit("-n", "1", TRAINING, env={**jobs.plane, **LOGIN})
    until(lambda: jobs.trains((1,)), LIMIT)

    jobs.pbs("qrerun", handle.rpartition("/")[2])
    until(lambda: jobs.trains((2,)), LIMIT)
    changed = jobs.said("set", handle, "lr=0.01", env={**jobs.plane, **LOGIN})
    jobs.said("stop", handle, env=jobs.plane)

    assert "lr 0.05 -> 0.01 at step" in changed
    assert jobs.known(handle)["run_count"] == 2


@pytest.mark.process
@pytest.mark.parametrize("short", [0.0, 1.0])
def test_all_jobs_are_listed_however_few_qstat_answers_for(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, short: float
) -> None:
    with Pbs(tmp_path, settings={"short_json": short}) as pbs:
        monkeypatch.setenv("PATH", pbs.env["PATH"])
        numbers = [pbs.run("qsub", "-h", stdin="true").stdout.split(".")[0] for _ in range(3)]

        found = create_scheduler("t").list()

    assert {line.app_id: line.state for line in found} == dict.fromkeys(numbers, AppState.PENDING)


@pytest.mark.soak
def test_a_job_that_does_not_react_is_ended_by_its_engine(jobs: PbsJobs) -> None:
    handle = jobs.submit("-n", "1", "-cfg", "grace=1", jobs.script(HOLD))
    until(lambda: jobs.told(), LIMIT)
    jobs.kill_all("torchloom.cli.batch", signal.SIGSTOP)

    done = jobs.loom("stop", handle)

    assert (done.returncode, done.stdout) == (0, f"{handle} CANCELLED\n")
    assert "did not end in time; its engine kills it" in done.stderr
