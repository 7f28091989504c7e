"""Ranks that a launcher inside a job starts: all are seen and changed, or commands are refused.

The weights are judged by what each rank has written itself.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.client import plane as client
from torchloom.errors import LoomError

from ..harness.forked_ranks import free_port
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Job, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch", "bash")]
WORLD = 2
SCRIPT = str(SCRIPTS / "inner.py")
FIT = str(SCRIPTS.parents[1] / "worker" / "programs" / "scripts" / "inner_fit.py")
EACH = str(SCRIPTS / "each.sh")
PER_NODE = ("--nproc-per-node", str(WORLD))
MULTI = ("--multi_gpu", "--num_processes", str(WORLD), "--num_machines", "1")
PRECISION = ("--mixed_precision", "no", "--dynamo_backend", "no")
TORCHRUN, ACCELERATE = (str(Path(sys.executable).with_name(n)) for n in ("torchrun", "accelerate"))

# The words behind `loom run`, of which `-e` are variables.
WAYS = {
    "module": ("-e", "LOOM_TORCHRUN=real", "-m", "torch.distributed.run", *PER_NODE, SCRIPT),
    "accelerate": ("--", ACCELERATE, "launch", *MULTI, *PRECISION, SCRIPT),
    "spawn": ("-e", "HOW=spawn", SCRIPT),
    "lightning": (FIT,),
    "variables": ("--", "bash", EACH, sys.executable, SCRIPT),
}
# Where `pip install --target` has put deepspeed; with it in our environment, the other frameworks
# would import it, too.
DEEPSPEED = os.environ.get("LOOM_TEST_DEEPSPEED", "")
if DEEPSPEED:
    there = ("-e", f"PYTHONPATH={DEEPSPEED}", "-e", "DS_ACCELERATOR=cpu")
    launch = ("-m", "deepspeed.launcher.runner", "--num_gpus", str(WORLD))
    WAYS["deepspeed"] = (*there, *launch, "--master_port", str(free_port()), SCRIPT)
Begin = Callable[..., Job]


@pytest.fixture(scope="module")
def begun(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Job]]:
    """Give jobs by their way to start, by name; all are started at once."""
    folder, jobs = tmp_path_factory.mktemp("inner"), dict[str, Job]()
    for way, words in WAYS.items():
        jobs[way] = run(words, folder / way)
    yield jobs
    for job in jobs.values():
        job.end()


@pytest.fixture
def begin(plane: Plane, warm: None, tmp_path: Path) -> Iterator[Begin]:
    """Start jobs; whatever still runs is ended after the test."""
    jobs: list[Job] = []

    def start(*words: str) -> Job:
        jobs.append(run(words, tmp_path / f"job-{len(jobs)}"))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def run(words: tuple[str, ...], out: Path) -> Job:
    out.mkdir()
    started = json.loads(loom("run", "--json", "-e", f"OUT={out}", *words))
    return Job.of(started["id"], WORLD, out)


def same_weights(job: Job) -> None:
    """Check that all ranks had the same weights after each step that all have done."""
    digests = [[row.digest for row in job.rows(rank)] for rank in range(WORLD)]
    common = min(map(len, digests))
    assert common > 0
    assert digests[0][:common] == digests[1][:common]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("module"),
        pytest.param("accelerate", marks=pytest.mark.needs("accelerate")),
        pytest.param("spawn"),
        pytest.param("lightning", marks=pytest.mark.needs("lightning")),
        pytest.param("variables"),
        pytest.param(
            "deepspeed",
            marks=pytest.mark.skipif(not DEEPSPEED, reason="LOOM_TEST_DEEPSPEED is not set"),
        ),
    ],
)
def test_ranks_of_a_launcher_inside_the_job_are_its_ranks(begun: dict[str, Job], way: str) -> None:
    job = begun[way]
    job.ready()

    at = job.set({"lr": 0.02})["effective_step"]
    until(lambda: min(job.step(rank) for rank in range(WORLD)) > at + 5, PATIENCE)
    seen = {rank["rank"]: rank["pid"] for rank in job.ranks() if rank["state"] == "up"}
    job.logged("loss")
    shown = json.loads(loom("show", "--json", job.id))
    job.stop()

    pids = {rank: job.pid(rank) for rank in range(WORLD)}
    assert seen == pids
    assert {rank["rank"]: rank["pid"] for rank in shown["ranks"]} == pids
    assert (shown["world_size"], shown["warning"]) == (WORLD, "")
    same_weights(job)
    for rank in range(WORLD):
        used = [row.used["lr"] for row in job.rows(rank)]
        assert used == [0.05] * at + [0.02] * (len(used) - at)


def test_a_command_line_of_torchrun_is_run_by_our_launcher(begin: Begin) -> None:
    job = begin("--", "torchrun", *PER_NODE, "--max-restarts", "2", SCRIPT)
    job.ready()

    record = json.loads(loom("show", "--json", job.id))
    pids = {rank["rank"]: rank["pid"] for rank in record["ranks"]}
    at = job.set({"lr": 0.02})["effective_step"]
    until(lambda: min(job.step(rank) for rank in range(WORLD)) > at + 5, PATIENCE)
    job.stop()

    assert pids == {rank: job.pid(rank) for rank in range(WORLD)}
    # cold while the warm interpreter takes in what the programs before have imported
    assert {rank["start"] for rank in record["ranks"]} <= {"warm", "cold"}
    same_weights(job)


def test_ranks_that_torchrun_restarts_take_up_the_change_at_its_step(begin: Begin) -> None:
    env = ("-e", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "-e", "LIVES=1")
    job = begin(*env, "--", TORCHRUN, *PER_NODE, "--max-restarts", "1", SCRIPT)
    job.ready()
    at = job.set({"lr": 0.02})["effective_step"]
    until(lambda: min(job.step(rank) for rank in range(WORLD)) > at + 5, PATIENCE)

    os.kill(job.pid(1), signal.SIGKILL)
    job.out = job.out / "1"
    until(lambda: min(job.step(rank) for rank in range(WORLD)) > at + 5, PATIENCE)
    later = job.set({"lr": 0.01})["effective_step"]
    until(lambda: min(job.step(rank) for rank in range(WORLD)) > later + 5, PATIENCE)

    same_weights(job)
    for rank in range(WORLD):
        used = [row.used["lr"] for row in job.rows(rank)]
        rest = len(used) - later
        assert used == [0.05] * at + [0.02] * (later - at) + [0.01] * rest


@contextlib.contextmanager
def refusal() -> Iterator[list[str]]:
    words: list[str] = []
    with pytest.raises(LoomError) as refused:
        yield words
    words += [refused.value.code, str(refused.value)]


def unchanged(job: Job) -> None:
    job.passes(5)
    same_weights(job)
    for rank in range(WORLD):
        assert {row.used["lr"] for row in job.rows(rank)} == {0.05}


def test_a_rank_that_does_not_report_is_missed_and_nothing_is_changed(begin: Begin) -> None:
    job = begin("-e", "SKIP=1", "--", "bash", EACH, sys.executable, SCRIPT)
    until(lambda: [rank for rank in job.ranks() if rank["step"]], PATIENCE)

    with refusal() as why:
        client.ask("set", None, job=job.id, values={"lr": 0.02}, wait=1.0)

    assert why[0] == "refused"
    assert "partly attached: the program trains with 2 ranks, of which 1 report" in why[1]
    unchanged(job)


def test_forked_ranks_are_not_seen_and_nothing_is_changed(begin: Begin) -> None:
    job = begin("-e", "HOW=fork", SCRIPT)
    job.passes(2)

    with refusal() as why:
        client.ask("set", None, job=job.id, values={"lr": 0.02}, wait=1.0)

    assert why[0] == "no_boundary"
    assert "if it starts its ranks by a launcher of its own" in why[1]
    unchanged(job)


def test_two_trainings_of_one_job_are_not_told_apart_and_nothing_is_changed(begin: Begin) -> None:
    one = f"mkdir $OUT/$n; OUT=$OUT/$n bash {EACH} {sys.executable} {SCRIPT} &"
    twice = f"for n in 0 1; do {one} done; wait"
    both = begin("--", "bash", "-c", twice)
    trainings = [Job.of(both.id, WORLD, both.out / str(number)) for number in range(2)]
    for one in trainings:
        one.passes(2)
    both_seen = lambda: len([rank for rank in both.ranks() if rank["step"]]) == WORLD  # noqa: E731
    until(both_seen, PATIENCE)

    with refusal() as why:
        both.set({"lr": 0.02})

    assert why[0] == "refused"
    assert "several processes of this job train as the same rank" in why[1]
    for one in trainings:
        unchanged(one)
