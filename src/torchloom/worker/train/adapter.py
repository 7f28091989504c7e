"""The interface between the ready-made training and a framework."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torchloom.specs.jobspec import Backend, JobSpec

if TYPE_CHECKING:
    from torchloom.worker.run.run import Run

ModelHandle = TypeVar("ModelHandle", covariant=True)
Model = TypeVar("Model")  # the same, where it is passed back
Batch = TypeVar("Batch")
DistContext = TypeVar("DistContext")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How a worker joins the others, and its resources."""

    backend: Backend = Backend.AUTO
    gpus: int = 0
    cpus: int = 1

    @classmethod
    def of(cls, spec: JobSpec) -> "WorkerPlan":
        """Return the plan of a job."""
        each = spec.resources
        return cls(spec.distributed.backend, each.gpus_per_worker, each.cpus_per_worker)


class FrameworkAdapter(Protocol[ModelHandle, Batch, DistContext, State]):
    """One framework; a rank has one adapter and calls it from one thread."""

    def build_model(self, spec: JobSpec) -> ModelHandle:
        """Return the model of a job with its initial weights, equal on every rank."""
        ...

    def build_dataloader(self, spec: JobSpec, rank: int, world_size: int) -> Iterable[Batch]:
        """Return a rank's share of the data, to be iterated once per epoch."""
        ...

    def init_distributed(self, plan: WorkerPlan) -> DistContext:
        """Join the other ranks."""
        ...

    def train_step(
        self, state: State, batch: Batch, dist: DistContext
    ) -> tuple[State, Mapping[str, Any]]:
        """Take one step; return the new state and the metrics of the step."""
        ...

    def serialize_state(self, state: State) -> bytes | dict[str, Any]:
        """Return everything that is needed to resume from here."""
        ...

    def deserialize_state(self, blob: bytes | dict[str, Any]) -> State:
        """Return the state of `serialize_state`."""
        ...


class TrainingAdapter(
    FrameworkAdapter[Model, Batch, DistContext, State],
    Protocol[Model, Batch, DistContext, State],
):
    """What the loop of the ready-made training asks of a framework besides."""

    def end(self, state: State) -> None:
        """Release what a finished training holds elsewhere; most hold nothing."""
        return

    def wrap(self, run: "Run", spec: JobSpec, model: Model) -> Model:
        """Return the model for training by the job's strategy. A collective call."""
        ...

    def build_evaluation(self, spec: JobSpec, rank: int, world_size: int) -> Iterable[Any]:
        """Return a rank's batches of the held-out part."""
        ...

    def begin(
        self,
        spec: JobSpec,
        model: Model,
        steps: int,
        live: Mapping[str, Any] | None = None,
    ) -> State:
        """Return a training of this many steps before its first one; `live` has its knobs."""
        ...

    def track(self, run: "Run", state: State) -> None:
        """Have checkpoints carry the state."""
        ...

    def evaluate(self, state: State, batches: Any, dist: DistContext) -> dict[str, float]:
        """Return loss and accuracy over the samples of all ranks. A collective call."""
        ...
