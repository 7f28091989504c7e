"""What `loom chaos` knows of a job that nobody prepared for it, and what it says is unknown."""

import json
import subprocess
from pathlib import Path

import pytest

from ..harness.chaos_training import LONG, all_is_well, planned, same_books
from ..harness.home import until
from ..harness.plane_jobs import LOOM, Plane, loom
from .conftest import Quiet, Start

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
STEPS = 300
PLAIN = """
import time, torch
from pathlib import Path
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(100_000):
    weight.grad = torch.ones(4)
    optimizer.step()
    Path("step").write_text(str(step))
    time.sleep(0.01)
"""


def test_a_job_without_a_log_gets_one_for_the_series_and_every_promise_is_known(
    start: Start, undisturbed: Quiet
) -> None:
    calm = undisturbed(2, STEPS)
    job = start(2, STEPS, pace=0.08, LOOM_LEDGER="").ready()
    assert list(job.run.glob("*digests*")) == []
    faults = [{"kind": "kill", "rank": 1}]

    report = job.strike(faults, 0.5, calm.digests)
    job.ends()

    all_is_well(report, faults)
    assert report["verdict"] == "ok"
    assert {one["answer"] for one in report["promises"]} == {"held"}
    (log,) = job.run.glob("*digests*")  # and what switched it on has gone
    lines = [json.loads(line) for line in (log / "rank_1.jsonl").read_text().splitlines()]
    assert len({line["incarnation"] for line in lines}) == 2
    assert (lines[0]["kind"], lines[0]["step"] > 0) == ("joined", True)
    assert max(line["step"] for line in lines) < STEPS - 1  # the series was over by then
    same_books(job.books(), calm.books())


def test_what_cannot_be_known_of_a_plain_script_is_named_and_is_not_ok(
    plane: Plane, warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(PLAIN)
    Path("plan.yaml").write_text(json.dumps(planned([{"kind": "stop", "lasts": 0.1}], 0.0)))
    job = json.loads(loom("run", "--json", "plain.py"))["id"]
    until(lambda: json.loads(loom("show", job, "--json"))["step"], LONG)

    done = subprocess.run(
        [LOOM, "chaos", job, "--plan", "plan.yaml", "-y"],
        capture_output=True,
        text=True,
        timeout=LONG,
        stdin=subprocess.DEVNULL,
    )
    before = int(Path("step").read_text() or 0)  # it may be written just now
    until(lambda: int(Path("step").read_text() or 0) > before)  # it goes on
    loom("stop", "--now", job)

    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "nothing broken; unknown: I1, I3, I4, I6"
    assert "no step digest log: digest refused: " in done.stdout
    assert "run.wrap and run.track" in " ".join(done.stdout.split())
