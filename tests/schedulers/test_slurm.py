"""Jobs on a real Slurm of four hosts, submitted from a fifth."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from ..harness.cluster import Cluster
from ..harness.home import until
from .engine_jobs import HOLD, LIMIT, ODD, SECRET, TRAINING
from .slurm_jobs import SlurmJobs

_SECRET = {"API_KEY": SECRET}


@pytest.fixture
def jobs(slurm_cluster: Cluster, home: Path, tmp_path: Path) -> SlurmJobs:
    return SlurmJobs(slurm_cluster, home, tmp_path)


def test_a_script_is_submitted_run_shown_read_and_removed(jobs: SlurmJobs) -> None:
    train = jobs.script("print('out', os.environ['RANK'])\nprint('bad', file=sys.stderr)\n" + HOLD)
    odd = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    words = (*odd, "-e", "API_KEY", "-cfg", "partition=test,comment=it's so", train)
    source = jobs.repository()

    handle = jobs.submit("-n", "4", "--ppn", "2", *words, "a b", "$(touch pwned)", "", env=_SECRET)
    until(lambda: len(jobs.told()) == 4)
    seen, record = jobs.command_lines(), jobs.slurm("scontrol", "show", "job", handle[-1])
    running, listed = jobs.shown(handle), jobs.said("ls", "-s", "slurm")
    refused = jobs.loom("rm", handle)
    follower = jobs.start("logs", "-f", handle)
    Path("go").touch()
    ended = jobs.ended(handle)

    assert ended["state"] == "COMPLETED", jobs.output(handle)
    jobs.whole(handle, follower)
    jobs.is_from(ended, *source)
    assert len([line for line in seen if "train.py" in line]) >= 4
    assert [line for line in (*seen, record, jobs.output(handle)) if SECRET in line] == []
    assert running["state"] == "RUNNING"
    assert [(one["replica"], one["node"]) for one in running["replicas"]] == [(0, "n1"), (1, "n2")]
    assert handle in listed
    assert refused.returncode == 2
    assert "stop it first" in refused.stderr
    assert jobs.said("logs", f"{handle}/train/1", "--regex", "out 3") == "[rank3]: out 3\n"
    assert jobs.said("logs", handle, "--stream", "stderr").count("bad") == 4
    assert jobs.said("logs", handle, "--ranks", "2", "--last", "1") == "[rank2]: bad\n"
    assert "node_joined" in jobs.said("show", handle, "--events")
    assert jobs.said("logs", handle, "--since", "2099-01-01T00:00") == ""
    assert jobs.said("logs", handle, "--until", "2000-01-01T00:00") == ""
    assert jobs.said("rm", handle) == f"{handle} removed\n"
    assert not Path(ended["folder"]).exists()


def test_roles_that_differ_get_their_own_hosts_macros_ports_and_the_first_ones_name(
    jobs: SlurmJobs,
) -> None:
    jobs.script("")
    words = ["-c", "echo $${rank0_env}; REPLICA=${replica_id}-$LOOM_ROLE exec python train.py"]
    role = {"image": "", "entrypoint": "bash", "args": words, "port_map": {"http": 0}}
    small, big = ({"cpu": cpu, "gpu": 0, "memMB": 100} for cpu in (1, 2))
    roles = [
        {**role, "name": "reader", "num_replicas": 2, "resource": small},
        {**role, "name": "trainer", "resource": big, "env": {"JOB": "${app_id}"}},
    ]
    Path("app.json").write_text(json.dumps({"name": "two", "roles": roles}))

    handle = jobs.submit("-cfg", "exclusive=true", "app.json")
    ended = jobs.ended(handle)

    assert ended["state"] == "COMPLETED", jobs.output(handle)
    told = jobs.told()
    assert sorted(told) == ["x-0-reader", "x-0-trainer", "x-1-reader"]
    assert len({one["host"] for one in told.values()}) == 3
    assert told["x-0-trainer"]["env"]["JOB"] == handle.rpartition("/")[2]
    first = told["x-0-reader"]["host"]
    assert {one["env"]["TORCHX_RANK0_HOST"] for one in told.values()} == {first}
    assert all(int(one["env"]["LOOM_PORT_HTTP"]) > 0 for one in told.values())
    assert [(one["role"], one["node"]) for one in ended["replicas"]] == [
        (name[4:], told[name]["host"]) for name in ("x-0-reader", "x-1-reader", "x-0-trainer")
    ]


def test_refusals_failures_and_stops_are_told_in_slurms_own_words(jobs: SlurmJobs) -> None:
    train = jobs.script(HOLD)

    bad = jobs.loom("run", "-d", "-s", "slurm", "-cfg", "partition=nope", train)
    failed = jobs.ended(jobs.submit(jobs.script("sys.exit(7)", "fails.py")))
    nowhere = jobs.ended(jobs.submit("-cfg", "python=/nowhere/python", train))
    held = jobs.submit("-cfg", "begin=now+1hour", "--name", "later", train)
    waits = jobs.shown(held)
    running = jobs.submit("--name", "now", train)
    until(lambda: jobs.told())
    stopped = jobs.said("stop", held, "now")

    assert (bad.returncode, "Invalid partition name specified" in bad.stderr) == (1, True)
    assert list((jobs.home / "jobs").glob("train-*")) != []  # those that were taken
    assert (failed["state"], failed["reason"]) == ("FAILED", "exit_code_7_fails_0")
    assert nowhere["state"] == "FAILED"
    said = jobs.said("logs", nowhere["handle"])
    assert re.search(r"loom: n\d has no usable /nowhere/python: submit with one", said)
    assert (waits["state"], waits["reason"]) == ("QUEUED", "BeginTime")
    assert stopped == f"{held} CANCELLED\n{running} CANCELLED\n"


def test_a_planned_script_submitted_by_hand_is_the_same_job(jobs: SlurmJobs) -> None:
    train = jobs.script("print('rank', os.environ['RANK'])")
    folder = jobs.folder / "by hand"

    options = ("-s", "slurm", "-cfg", f"job_dir={folder}", "-n", "2", "-e", "A=b c")
    jobs.said("plan", "--save", *options, train, "x y")
    number = jobs.slurm("sbatch", "--parsable", str(folder / "job.sh")).strip()
    until(lambda: len(jobs.told()) == 2)
    ended = jobs.ended(f"slurm://torchx/{number}")
    refused = jobs.loom("resume", number)
    again = jobs.said("resume", "--from-scratch", "--until", "1", number).strip()
    until(lambda: jobs.ended(again))

    assert (ended["state"], ended["name"]) == ("COMPLETED", "train")
    told = jobs.told()
    assert [(one["argv"], one["env"]["A"]) for one in told.values()] == [(["x y"], "b c")] * 2
    assert (refused.returncode, "is COMPLETED: nothing is left" in refused.stderr) == (2, True)
    assert again == f"slurm://torchx/{int(number) + 1}"
    assert {one["env"]["LOOM_ATTEMPT"] for one in told.values()} == {"1"}
    assert jobs.shown(again)["run_id"] == ended["run_id"]


def test_the_tasks_of_an_array_are_runs_of_their_own(jobs: SlurmJobs) -> None:
    train = jobs.script("print('task', os.environ['SLURM_ARRAY_TASK_ID'])")

    handle = jobs.submit("-cfg", "array=3-4", "--name", "many", train)
    ended = jobs.ended(handle)

    assert ended["state"] == "COMPLETED"
    assert jobs.said("logs", "many").splitlines() == [
        "[task3 rank0]: task 3",
        "[task4 rank0]: task 4",
    ]
    folders = sorted(path.name for path in (jobs.home / "runs").glob("many-*"))
    assert folders == [f"{ended['run_id']}-{task}" for task in (3, 4)]


@pytest.mark.needs("torch")
def test_a_training_over_hosts_is_changed_hurt_warned_and_goes_on(jobs: SlurmJobs) -> None:
    words = ("up", "--trust-operators", "--host", jobs.cluster.addresses["ctl"])
    jobs.said(*words, env=jobs.plane)
    handle = jobs.submit("-n", "2", "--ppn", "1", "--policy", "live", TRAINING, env=jobs.plane)
    until(lambda: jobs.trains((1, 1)))
    run_id = jobs.shown(handle)["run_id"]
    until(lambda: _is_watched(jobs, run_id))

    changed = jobs.said("set", handle, "lr=0.01", env=jobs.plane)
    calls = [jobs.cluster.run(host, _TO_NATS).stdout.count(":4222") for host in ("n1", "n2")]
    weavers = jobs.running("-m torchloom.weaver ")
    jobs.kill_rank("n2", 1)
    until(lambda: jobs.trains((1, 2)))
    hurt = [jobs.lives(rank) for rank in range(2)]
    jobs.slurm("scancel", "--signal=USR1", "--batch", handle.rpartition("/")[2])
    until(lambda: jobs.trains((2, 3)))
    resumed = jobs.shown(handle)
    jobs.said("stop", handle, env=jobs.plane)
    jobs.said("down", env=jobs.plane)

    at = int(re.findall(r"lr 0.05 -> 0.01 at step (\d+) on ranks 0-1", changed)[0])
    begins = [next(step for step, lr in life[0][1] if lr == 0.01) for life in hurt]
    assert begins == [at, at]
    assert (calls, len(weavers)) == ([1, 1], 1)  # each host's agent; the plane's own weaver alone
    assert [one[0]["host"] for life in hurt for one in life] == ["n1", "n2", "n2"]
    done = list(dict.fromkeys(step for step, _ in hurt[0][0][1]))  # one was interrupted, and again
    assert done == list(range(len(done)))
    saved = int(re.findall(r"saved at step (\d+), to be queued again", jobs.output(handle))[0])
    for rank in range(2):
        told, steps = jobs.lives(rank)[-1]
        assert (told["restarts"], bool(told["resume"])) == ("1", True)
        assert steps[0] == (saved, 0.01)
    assert resumed["restarts"] >= 1
    assert jobs.shown(handle)["state"] == "CANCELLED"


_TO_NATS = ["ss", "-Htn", "state", "established", "dport", "=", ":4222"]


def test_a_job_out_of_reach_of_any_plane_brings_its_own_and_is_steered_there(
    jobs: SlurmJobs,
) -> None:
    script, (commit, diff) = jobs.script(STEPS), jobs.repository()
    handle = jobs.submit("-n", "2", script, env=jobs.plane)
    until(lambda: len(list(jobs.folder.glob("heat-*"))) == 2)
    until(lambda: "0-1" in jobs.loom("set", handle, env=jobs.plane).stdout)  # both have told it

    changed = jobs.said("set", handle, "heat=0.5", env=jobs.plane)
    until(lambda: all("0.5" in path.read_text() for path in jobs.folder.glob("heat-*")))
    planes = jobs.running("torchloom.plane")
    until(lambda: list((jobs.home / "runs").glob("*/experiment.json")))  # its plane has looked
    stopped = jobs.said("stop", handle, env=jobs.plane)
    until(lambda: not jobs.running("torchloom.plane"))  # it goes with the job

    at = int(re.findall(r"heat 0.7 -> 0.5 at step (\d+) on ranks 0-1", changed)[0])
    for path in jobs.folder.glob("heat-*"):
        rows = [line.split() for line in path.read_text().splitlines()]
        assert next(int(step) for step, heat in rows if heat == "0.5") == at
    assert len(planes) == 1
    assert stopped == f"{handle} CANCELLED\n"
    run = jobs.home / "runs" / jobs.shown(handle)["run_id"]
    record = json.loads((run / "experiment.json").read_bytes())
    assert (record["cwd"], record["git"]["commit"], record["notes"]) == (os.getcwd(), commit, [])
    assert (run / "diff.patch").read_bytes() == diff


STEPS = """
import time
import torchloom as loom
run = loom.init(config={"heat": 0.7})
run.knob("heat", 0.7, 0.0, 1.0)
out = open(os.environ["OUT"] + "/heat-" + os.environ["RANK"], "w", buffering=1)
for step in run.steps(100_000):
    with step:
        print(step.number, run.config["heat"], file=out)
        time.sleep(0.01)
"""


def _is_watched(jobs: SlurmJobs, run_id: str) -> bool:
    return any(e["event"] == "watched" and e["is_live"] for e in jobs.events(run_id))


@pytest.mark.soak
@pytest.mark.needs("torch")
def test_a_time_limit_is_come_before(jobs: SlurmJobs) -> None:
    words = ("-n", "2", "--ppn", "1", "-cfg", "time=1,warn=30", TRAINING)

    handle = jobs.submit(*words, env=jobs.plane)
    until(lambda: jobs.trains((2, 2)), 4 * LIMIT)
    jobs.said("stop", "--now", handle, env=jobs.plane)

    saved = int(re.findall(r"saved at step (\d+), to be queued again", jobs.output(handle))[0])
    for rank in range(2):
        told, steps = jobs.lives(rank)[-1]
        assert (told["restarts"], steps[0][0]) == ("1", saved)


@pytest.mark.soak
@pytest.mark.needs("torch")
def test_a_job_that_may_shrink_outlives_a_node(jobs: SlurmJobs) -> None:
    words = ("dist.loom", "-j", "1:2x1", "--max_retries", "2", "--script", str(TRAINING))

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # a component's python
    env = {**jobs.plane, "PATH": path}
    handle = jobs.submit("-cfg", "policy=shrink,nomem=true", *words, env=env)
    until(lambda: jobs.trains((1, 1)))
    jobs.cluster.cut("n2")
    jobs.cluster.kill_host("n2")
    until(lambda: len(jobs.lives(0)) > 1 and len(jobs.lives(0)[-1][1]) > 5, 2 * LIMIT)
    shown = jobs.shown(handle)
    jobs.said("stop", "--now", handle, env=jobs.plane)

    assert shown["state"] == "RUNNING"
    assert jobs.lives(0)[-1][0]["host"] == "n1"
    assert len(jobs.lives(1)) == 1


def test_a_hundred_jobs_are_listed_with_one_question(jobs: SlurmJobs) -> None:
    Path("many.py").write_text(MANY)
    jobs.cluster.run("ctl", [jobs.python, "many.py"], jobs.variables(), timeout=LIMIT)
    count = jobs.counting("squeue")

    rows = json.loads(jobs.said("ls", "-s", "slurm", "--json"))

    assert len([row for row in rows if row["app_state"] == "PENDING"]) == 100
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), key=int)[::-1]
    assert count.read_text().count("\n") == 1


MANY = """
from torchloom.runner.api import get_runner
from torchloom.specs.api import AppDef, Role
runner = get_runner()
for number in range(100):
    role = Role("a", "", entrypoint="true")
    runner.run(AppDef(f"job{number}", [role]), "slurm", {"begin": "now+1hour"})
"""


def test_a_job_that_is_stopped_has_its_grace_on_all_hosts_and_leaves_nothing(
    jobs: SlurmJobs, own_tmp: None
) -> None:
    jobs.check_stop(2)
