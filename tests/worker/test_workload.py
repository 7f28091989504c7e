"""The smoke test says what is wrong when ranks do not train together; nothing when they do."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("torch")
if importlib.util.find_spec("torch"):
    from torchloom.worker.workload import MODELS, RankRow, WorkloadReport, train

SOURCE = Path(__file__).parents[2] / "src"
APART = """
import sys
from torchloom.worker import dist, workload
rank = dist.setup_torch(timeout=60)
report = workload.train("mlp", 3, wrap=lambda model: model)
dist.cleanup()
sys.exit(f"{report.error}" if rank == 0 else 0)
"""


def report(*digests: str, losses: tuple[float, float] = (2.0, 1.0)) -> "WorkloadReport":
    rows = [RankRow(rank, rank, 0, "h", 1, "cpu", word) for rank, word in enumerate(digests)]
    return WorkloadReport("mlp", 40, len(rows), "gloo", losses, 1.0, 5120.0, tuple(rows))


@pytest.mark.parametrize(
    ("digests", "losses", "error"),
    [
        ("aaaa", (2.0, 1.0), ""),
        ("aaba", (2.0, 1.0), "rank 2 has other parameters than rank 0 after 40 steps: gradients"),
        ("abba", (2.0, 1.0), "ranks 1, 2 have other parameters than rank 0"),
        ("aa", (1.0, 1.0), "the loss did not fall: 1.0000 before, 1.0000 after 40 steps of mlp"),
        ("aa", (1.0, float("nan")), "the loss did not fall: 1.0000 before, nan after"),
    ],
)
def test_the_verdict_is_a_sentence(digests: str, losses: tuple[float, float], error: str) -> None:
    found = report(*digests, losses=losses)

    assert found.error.startswith(error)
    assert bool(found.error) == bool(error)


def test_the_report_is_plain_json_even_when_the_loss_is_no_number() -> None:
    found = report("a", losses=(2.0, float("inf"))).to_dict()

    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "ok": False,
        "error": report("a", losses=(2.0, float("inf"))).error,
        "model": "mlp",
        "steps": 40,
        "world_size": 1,
        "backend": "gloo",
        "loss_before": 2.0,
        "loss_after": None,
        "seconds": 1.0,
        "samples_per_second": 5120.0,
        "ranks": [
            {"rank": 0, "local_rank": 0, "node": 0, "host": "h", "pid": 1, "device": "cpu"}
            | {"digest": "a"}
        ],
    }


@pytest.mark.process  # it takes longer than the unit tests of any other room
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_every_model_learns_within_the_default_steps_and_repeats_itself(name: str) -> None:
    first, again = train(name, 40), train(name, 40)

    assert name in MODELS
    assert first.losses[1] < first.losses[0] / 2
    assert first.error == ""
    assert replace(again, seconds=0, samples_per_second=0) == replace(
        first, seconds=0, samples_per_second=0
    )


@pytest.mark.process
def test_ranks_that_train_apart_are_found_out(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode != 0
    assert "rank 1 has other parameters than rank 0 after 3 steps" in done.stderr


@pytest.mark.process
def test_a_run_that_learns_nothing_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    still = (
        "import sys, torch\n"
        "torch.optim.Adam.step = lambda *_: None\n"
        "from torchloom.worker.smoke import main\n"
        "sys.exit(main(['--steps', '2', '--report', sys.argv[1]]))\n"
    )
    path = tmp_path / "report.json"

    done = subprocess.run(
        [sys.executable, "-c", still, str(path)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAILED"), done.stderr
    assert "smoke test failed: the loss did not fall: " in done.stderr
    assert json.loads(path.read_text())["ok"] is False
