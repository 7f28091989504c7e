"""A job over hosts saves in one place, and goes on from there when a host's rank dies."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from ...harness.home import until
from ...harness.host_launches import LOOM, Launches
from ...harness.watched_job import PATIENCE, Watched

pytestmark = pytest.mark.needs("torch")
EVERY, STEPS = 10, 60

# Each rank writes down every step with its generation and the digest of its weights behind it.
SAVE = """
import hashlib, time
import torch
import torch.distributed as dist
import torchloom as loom

dist.init_process_group("gloo")
rank, generation = dist.get_rank(), int(os.environ["LOOM_GENERATION"])
torch.manual_seed(3)
run = loom.init()
run.checkpointing(every_n_steps=10, keep_last=100)
layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
model = run.wrap(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run.track(optimizer=optimizer)
samples = torch.utils.data.TensorDataset(torch.randn(240, 4))
name = os.environ["REPORTS"] + f"/../rank-{rank}"
out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for step in run.steps(run.loader(samples, batch_size=4), epochs=2):
    with step:
        model(step.batch[0]).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    os.write(out, json.dumps([generation, step.number, told.hexdigest()]).encode() + b"\\n")
    time.sleep(0.02)
"""


@pytest.fixture
def job(launches: Launches) -> Iterator[Watched]:
    """Give a job that the plane of n1 is to watch; the plane goes after it."""
    watched = Watched(launches)
    yield watched
    watched.loom("down")


def lines(job: Watched, rank: int) -> list[tuple[int, int, str]]:
    path = job.launches.folder / f"rank-{rank}"
    whole = path.read_bytes() if path.exists() else b""
    return [tuple(json.loads(line)) for line in whole.split(b"\n")[:-1]]


def committed(job: Watched) -> list[str]:
    return [str(p) for p in job.launches.home.glob("runs/*/checkpoints/ckpt_*/manifest.json")]


def test_ranks_of_two_hosts_go_on_from_what_they_saved_together(job: Watched) -> None:
    launches = job.launches
    hosts = ("--hostfile", str(launches.hostfile(n1=1, n2=1)))
    again = ("--policy", "restart", "--max-restarts", "2")
    script = str(launches.script(SAVE))

    launch = launches.start("n1", *LOOM, "launch", *hosts, *again, script, env=job.variables())
    until(lambda: committed(job) != [], PATIENCE)
    (victim,) = launches.ranks_on("n2")
    os.kill(victim, signal.SIGKILL)
    code = launch.wait(PATIENCE)

    assert code == 0
    for rank in range(2):
        rows = lines(job, rank)
        chain = {step: digest for _, step, digest in rows}
        assert sorted(chain) == list(range(STEPS))
        assert {(step, digest) for _, step, digest in rows} == set(chain.items())
        first = min(step for generation, step, _ in rows if generation == 1)
        assert first >= EVERY
        assert first % EVERY == 0


def test_hosts_that_do_not_see_the_same_folder_are_told_so_before_the_first_step(
    job: Watched,
) -> None:
    launches = job.launches
    launches.cluster.private(launches.home, ["n2"])
    hosts = ("--hostfile", str(launches.hostfile(n1=1, n2=1)))
    script = str(launches.script(SAVE))

    launch = launches.start("n1", *LOOM, "launch", *hosts, script, env=job.variables())
    said = "".join(launch.communicate(timeout=PATIENCE))

    assert launch.returncode != 0
    assert "cannot be seen by ranks 1: set LOOM_CHECKPOINTS to a folder" in said
    assert [lines(job, rank) for rank in range(2)] == [[], []]
