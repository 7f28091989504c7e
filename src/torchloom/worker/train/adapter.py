"""What the runtime asks of a framework: six things, whichever framework it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torchloom.specs.jobspec import Backend, JobSpec

ModelHandle = TypeVar("ModelHandle", covariant=True)
Batch = TypeVar("Batch")
DistContext = TypeVar("DistContext")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How a worker is to join the others, and what it computes with."""

    backend: Backend = Backend.AUTO
    gpus: int = 0
    cpus: int = 1

    @classmethod
    def of(cls, spec: JobSpec) -> "WorkerPlan":
        """Return what a job says of it."""
        each = spec.resources
        return cls(spec.distributed.backend, each.gpus_per_worker, each.cpus_per_worker)


class FrameworkAdapter(Protocol[ModelHandle, Batch, DistContext, State]):
    """One framework; a rank has one of these and calls it from one thread."""

    def build_model(self, spec: JobSpec) -> ModelHandle:
        """Return the model of a job, with its first weights: the same on every rank."""
        ...

    def build_dataloader(self, spec: JobSpec, rank: int, world_size: int) -> Iterable[Batch]:
        """Return a rank's share of the data; it is gone through once an epoch."""
        ...

    def init_distributed(self, plan: WorkerPlan) -> DistContext:
        """Join the other ranks."""
        ...

    def train_step(
        self, state: State, batch: Batch, dist: DistContext
    ) -> tuple[State, Mapping[str, Any]]:
        """Take one step; return the state behind it, and what is to be known of it."""
        ...

    def serialize_state(self, state: State) -> bytes | dict[str, Any]:
        """Return all that is needed to go on from here."""
        ...

    def deserialize_state(self, blob: bytes | dict[str, Any]) -> State:
        """Return the state that was written down."""
        ...
