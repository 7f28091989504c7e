"""The training itself, from a job to its summary: `train` reads from top to bottom."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torchloom as loom
from torchloom.specs.jobspec import JobSpec, Knob
from torchloom.worker import dist as ranks
from torchloom.worker.run.run import Run
from torchloom.worker.train.adapter import WorkerPlan
from torchloom.worker.train.data import Batch
from torchloom.worker.train.hyperparameters import TABLE, Hyper, check_job
from torchloom.worker.train.pytorch import PyTorchAdapter, evaluate


def train(spec: JobSpec) -> "Summary":
    """Train as a job says, together with all other ranks."""
    hyper = check_job(spec)
    adapter = PyTorchAdapter()
    dist = adapter.init_distributed(WorkerPlan.of(spec))

    run = loom.init(project=spec.project)
    offer_knobs(run, spec, hyper)
    run.checkpointing(**wishes(spec))

    model = run.wrap(adapter.build_model(spec).to(dist.device))
    batches = adapter.build_dataloader(spec, dist.rank, dist.world_size)
    held_out = adapter.build_evaluation(spec, dist.rank, dist.world_size)
    state = adapter.begin(spec, model, hyper.epochs * len(batches), run.config)
    run.track(optimizer=state.optimizer, scaler=state.scaler)

    pace = StepPace(dist.world_size)
    last: dict[str, Any] = {}
    found: dict[str, float] = {}
    for step in run.steps(batches, epochs=hyper.epochs):
        with step:
            state = replace(state, step=step.number)  # which may not be the first one
            state, last = adapter.train_step(state, step.batch, dist)
            step.log(**last, **pace.lap(step.batch))
        if batches.is_at_end:
            found = evaluate(state, held_out, dist)
            if found:
                run.log(found)
            pace.rest()

    means = {name: ranks.all_reduce(float(value), "mean") for name, value in last.items()}
    done = run.applied, state.steps, pace.samples, pace.seconds
    summary = Summary(spec.name, dist.world_size, *done, means | found)
    if dist.rank == 0:
        run.event("trained", **summary.facts())
    return summary


def wishes(spec: JobSpec) -> dict[str, Any]:
    """Return what a job says of its checkpoints; where they go, its launcher has settled."""
    told = asdict(spec.checkpointing)
    del told["store"]
    return told


def offer_knobs(run: Run, spec: JobSpec, hyper: Hyper) -> None:
    """Have the job's knobs changed from outside; those of the optimizer come by themselves."""
    for name, knob in {"clip": Knob(hyper.clip), **spec.knobs}.items():
        value, low, high = knob.value, knob.min, knob.max
        if name in TABLE:
            limits = TABLE[name][1]
            value = float(value)
            low = limits.low if low is None else low
            high = limits.high if high is None else high
        run.knob(name, value, low, high)


class StepPace:
    """How fast steps are taken, and how much they have taken in."""

    def __init__(self, workers: int) -> None:
        self.samples = 0  # of all workers
        self._workers = workers
        self._start = self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return how long the training has lasted, evaluations included."""
        return time.monotonic() - self._start

    def lap(self, batch: Batch) -> dict[str, float]:
        """Return how long a step took, and the samples a second of all workers."""
        now = time.monotonic()
        lasted, self._since = max(now - self._since, 1e-9), now
        samples = self._workers * sum(len(targets) for _, targets in batch)
        self.samples += samples
        return {"step_time": lasted, "throughput": samples / lasted}

    def rest(self) -> None:
        """Begin the next step here: what came before belongs to none."""
        self._since = time.monotonic()


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a training; the numbers are those of its last step and evaluation."""

    name: str
    workers: int
    steps: int
    planned: int  # more than `steps` when it was told to stop
    samples: int
    seconds: float
    metrics: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        """Tell whether the training has led to something."""
        return all(math.isfinite(value) for value in self.metrics.values())

    def facts(self) -> dict[str, Any]:
        """Return all of it as one row."""
        named = {
            name.replace("/", "_"): value if math.isfinite(value) else str(value)
            for name, value in self.metrics.items()
        }
        counts = {"steps": self.steps, "samples": self.samples, "workers": self.workers}
        return {**counts, "seconds": round(self.seconds, 3), **named}

    def __str__(self) -> str:
        count = f"{self.steps} steps" + (f" of {self.planned}" * (self.steps < self.planned))
        rate = self.samples / self.seconds if self.seconds else 0.0
        parts = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        workers = f"{self.workers} worker" + "s" * (self.workers != 1)
        told = f"{count}, {workers}, {self.seconds:.1f} s, {rate:,.0f} samples/s"
        return f"{self.name}: {'; '.join((told, ', '.join(parts) or 'nothing learned'))}"
