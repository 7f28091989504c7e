"""Engines: how long a plan takes for an app of a thousand replicas, beside TorchX's for Slurm.

Both plan in a process that has imported everything and planned once; no Slurm is asked.
"""

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.cli import version
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, asked

SAMPLES = 15
REPLICAS = 1000

# Plans whenever a line comes, and answers with the milliseconds it took, printing included.
PLANNER = """
import sys, time
from {package}.runner import get_runner
from {package}.specs import AppDef, Resource, Role
role = Role("trainer", "", entrypoint="python", args=["train.py", "--lr", "0.1"],
            env={{f"NAME_{{n}}": "value" for n in range(20)}}, num_replicas=int(sys.argv[1]),
            resource=Resource(8, 0, 1024))
app, runner = AppDef("app", [role]), get_runner()
for _ in sys.stdin:
    began = time.perf_counter()
    str(runner.dryrun(app, "slurm", {{"partition": "gpu"}}))
    print((time.perf_counter() - began) * 1e3, flush=True)
"""


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of engines."""
    ours = Subject("Runner.dryrun(app, 'slurm')", planner(lab, lab.ours / "python", "torchloom"))
    peer = Subject(
        "Runner.dryrun(app, 'slurm')",
        planner(lab, lab.peers / "python", "torchx"),
        "torchx-nightly",
        version(lab, "torchx-nightly"),
    )
    return [Figure("plan-1000", "ms", ours, peer)]


def planner(lab: Lab, python: Path, package: str) -> Callable[[], float]:
    """Return a sampler of one plan after another in one process."""

    @cache
    def started() -> "subprocess.Popen[str]":
        if not python.exists():
            raise CannotMeasure(f"{python} is not there; `make bench` installs the peers")
        process = subprocess.Popen(
            [str(python), "-c", PLANNER.format(package=package), str(REPLICAS)],
            cwd=lab.scratch,
            env=dict(lab.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        lab.at_end.callback(process.wait)
        lab.at_end.callback(process.kill)
        sample(process)  # the first one imports what is imported on use
        return process

    def sample(process: "subprocess.Popen[str]") -> float:
        return asked(process, "plan", f"{package} could not plan the app")

    return lambda: sample(started())
