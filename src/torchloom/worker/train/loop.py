"""The loop of the ready-made training, from a job to its summary."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torchloom as loom
from torchloom.specs.framework import LIMITS
from torchloom.specs.jobspec import Framework, JobSpec, Knob, Strategy
from torchloom.worker import dist as ranks
from torchloom.worker import environment
from torchloom.worker.run.run import Run
from torchloom.worker.train.adapter import TrainingAdapter, WorkerPlan
from torchloom.worker.train.data import Batch
from torchloom.worker.train.hyperparameters import LIVE, TABLE, Hyper, check_job
from torchloom.worker.train.pytorch import PyTorchAdapter, share_of

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def train(spec: JobSpec) -> "Summary":
    """Train a job, together with all other ranks."""
    hyper = check_job(spec)
    adapter = adapter_of(spec)
    dist = adapter.init_distributed(WorkerPlan.of(spec))

    run = loom.init(project=spec.project)
    offer_knobs(run, spec, hyper)
    run.checkpointing(**checkpoint_settings(spec))

    model = adapter.wrap(run, spec, adapter.build_model(spec))
    share, shares = share_of(spec)
    batches: Any = adapter.build_dataloader(spec, share, shares)
    held_out = adapter.build_evaluation(spec, share, shares)
    state = adapter.begin(spec, model, hyper.epochs * len(batches), run.config)
    adapter.track(run, state)

    pace = StepPace(shares)
    last: Mapping[str, Any] = {}
    found: dict[str, float] = {}
    for step in run.steps(batches, epochs=hyper.epochs):
        with step:
            state = replace(state, step=step.number)  # after a restart not the first one
            state, last = adapter.train_step(state, step.batch, dist)
            step.log(**last, **pace.lap(step.batch))
        if batches.is_at_end:
            found = adapter.evaluate(state, held_out, dist)
            if found:
                run.log(found)
            pace.rest()

    means = {name: ranks.all_reduce(float(value), "mean") for name, value in last.items()}
    adapter.end(state)
    done = run.applied, state.steps, pace.samples, pace.seconds
    summary = Summary(spec.name, dist.world_size, *done, means | found)
    if dist.rank == 0:
        run.event("trained", **summary.facts())
    return summary


def adapter_of(spec: JobSpec) -> TrainingAdapter[Any, Any, Any, Any]:
    """Return the adapter of a job's framework, which is imported on use."""
    match spec.framework:
        case Framework.JAX:
            from torchloom.worker.train.jax_adapter import JaxAdapter

            return JaxAdapter()
        case Framework.TENSORFLOW:
            environment.export({_LOG_LEVEL: environment.text(_LOG_LEVEL, "2")})  # before the import
            from torchloom.worker.train.tensorflow_adapter import TensorFlowAdapter

            return TensorFlowAdapter()
        case Framework.HUGGINGFACE:
            from torchloom.worker.train.language_model import HuggingFaceAdapter

            return HuggingFaceAdapter()
    return PyTorchAdapter()


def checkpoint_settings(spec: JobSpec) -> dict[str, Any]:
    """Return the checkpoint settings of a job, without the store, which the launcher sets."""
    settings = asdict(spec.checkpointing)
    del settings["store"]
    return settings


def offer_knobs(run: Run, spec: JobSpec, hyper: Hyper) -> None:
    """Register the job's knobs; those of an optimizer of torch exist by themselves."""
    own = ["clip"] if LIMITS[spec.framework].is_torch else list(LIVE)
    if hyper.optimizer != "sgd" and "momentum" in own:
        own.remove("momentum")
    if spec.distributed.strategy is Strategy.PARAMETER_SERVER:
        own.remove("clip")
    found = {name: Knob(getattr(hyper, name)) for name in own}
    for name, knob in {**found, **spec.knobs}.items():
        value, low, high = knob.value, knob.min, knob.max
        if name in TABLE:
            limits = TABLE[name][1]
            value = float(value)
            low = limits.low if low is None else low
            high = limits.high if high is None else high
        run.knob(name, value, low, high)


class StepPace:
    """Measures step time, throughput and the number of samples."""

    def __init__(self, workers: int) -> None:
        self.samples = 0  # of all workers
        self._workers = workers
        self._start = self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The duration of the training so far, with evaluations."""
        return time.monotonic() - self._start

    def lap(self, batch: Batch) -> dict[str, float]:
        """Return the duration of a step, and the samples per second of all workers."""
        now = time.monotonic()
        lasted, self._since = max(now - self._since, 1e-9), now
        samples = self._workers * sum(len(targets) for _, targets in batch)
        self.samples += samples
        return {"step_time": lasted, "throughput": samples / lasted}

    def rest(self) -> None:
        """Restart the clock: the time since the last step is not counted."""
        self._since = time.monotonic()


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a training, with the metrics of its last step and evaluation."""

    name: str
    workers: int
    steps: int
    planned: int  # more than `steps` if it was stopped
    samples: int
    seconds: float
    metrics: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        """Tell whether all metrics are finite."""
        return all(math.isfinite(value) for value in self.metrics.values())

    def facts(self) -> dict[str, Any]:
        """Return the summary as the facts of an event."""
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
        counts = f"{count}, {workers}, {self.seconds:.1f} s, {rate:,.0f} samples/s"
        return f"{self.name}: {'; '.join((counts, ', '.join(parts) or 'nothing learned'))}"
