"""One unmodified training script ends with the same bits, whoever launches it."""

import subprocess
import sys
from pathlib import Path

import pytest

from ...harness.host_launches import LIMIT, LOOM, Launches

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("mpi")]

SCRIPT = Path(__file__).with_name("ddp.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SET_UP = """
import sys
import torch
from torchloom.worker import dist

dist.setup_torch(backend="gloo")
value = torch.tensor(float(dist.get_rank()))
total = float(dist.all_reduce(value))
sys.stdout.write(f"sum {total} of {dist.get_world_size()}\\n")  # whole: others print, too
dist.cleanup()
"""


def digest(output: str) -> str:
    (line,) = [line for line in output.splitlines() if "digest " in line]
    return line[line.index("digest ") :]


@pytest.fixture(scope="module")
def torchruns() -> str:
    """What torchrun makes of the script."""
    words = [sys.executable, *TORCHRUN, str(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return digest(done.stdout)


ALLOCATION = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1")
LAUNCH = (*LOOM, "launch")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("n1", (*LAUNCH, "-n", "2")),
        ("n1", (*LAUNCH, "--hostfile", "HOSTS")),
        ("ctl", (*ALLOCATION, *LAUNCH)),
        ("ctl", (*ALLOCATION, *LAUNCH, "--per-rank")),
        ("n1", (*LAUNCH, "--launcher", "mpirun", "--per-rank", "--hostfile", "HOSTS")),
    ],
    ids=["here", "ssh", "salloc", "salloc_per_rank", "mpirun_per_rank"],
)
def test_the_same_script_ends_with_the_same_bits(
    in_slurm: Launches, torchruns: str, host: str, words: tuple[str, ...]
) -> None:
    hosts = in_slurm.hostfile(n1=1, n2=1)
    argv = [str(hosts) if word == "HOSTS" else word for word in words]

    done = in_slurm.cluster.run(host, [*argv, SCRIPT], in_slurm.variables(), timeout=LIMIT)

    assert done.returncode == 0, done.stderr
    assert digest(done.stdout) == torchruns


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("n1", ("mpirun", "--hostfile", "HOSTS", "-x", "PYTHONPATH", "-x", "MASTER_ADDR=n1")),
        ("ctl", (*ALLOCATION, "mpirun")),
    ],
    ids=["told_where", "salloc"],
)
def test_ranks_of_a_plain_mpirun_meet(
    in_slurm: Launches, host: str, words: tuple[str, ...]
) -> None:
    hosts = in_slurm.hostfile(n1=1, n2=1)
    argv = [str(hosts) if word == "HOSTS" else word for word in words]
    script = Path("meet.py")
    script.write_text(SET_UP)

    program = ["-np", "2", sys.executable, script]
    done = in_slurm.cluster.run(host, [*argv, *program], in_slurm.variables(), timeout=LIMIT)

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["sum 1.0 of 2"] * 2
