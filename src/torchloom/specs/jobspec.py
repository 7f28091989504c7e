"""What a user submits: a program or a built-in training, resources, recovery.

The public format of jobs: `jobspec_shape` builds one from plain data, a component makes an app of
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

RETRIES = 3  # of a job that saves and sets no number of attempts


class Strategy(StrEnum):
    """How one model is trained by several workers."""

    DATA_PARALLEL = "data_parallel"


class Backend(StrEnum):
    """What carries collectives; `auto` is nccl where every worker has a GPU, else gloo."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


class Policy(StrEnum):
    """What follows when a worker is lost."""

    LIVE = "live"
    RESTART = "restart"
    SHRINK = "shrink"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Resources:
    """How many workers, and what each of them gets; memory 0 means no limit."""

    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: int = 0
    memory_mb_per_worker: int = 0


@dataclass(frozen=True, slots=True)
class Distributed:
    """How the workers work together."""

    strategy: Strategy = Strategy.DATA_PARALLEL
    backend: Backend = Backend.AUTO


class Mode(StrEnum):
    """Which value of a metric is the best one."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """When to save, where, and what is kept; the newest is always kept.

    The store is `local` (the run's own folder), another folder, or `s3://bucket/prefix`.
    """

    enabled: bool = False
    every_n_steps: int | None = 200
    every_n_seconds: float | None = None
    store: str = "local"
    keep_last: int = 3
    keep_every: int | None = None  # besides, those whose step is a multiple of this
    best: str | None = None  # besides, the one that is best by this metric
    mode: Mode = Mode.MIN


@dataclass(frozen=True, slots=True)
class Compression:
    """Whether gradients are compressed before they are sent."""

    enabled: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    """What follows when a worker is lost; without a policy the one that fits the program."""

    policy: Policy | None = None
    attempts: int | None = None  # none: as many as fit a job that saves, or does not
    backoff: float = 0.0  # seconds before the second attempt; twice as many before each further one


@dataclass(frozen=True, slots=True)
class Elastic:
    """Between how many workers a job may keep training."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Knob:
    """A value that may be changed while the job runs."""

    value: bool | int | float | str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: exactly one of `model`, `script`, `module` and `command` names what runs."""

    name: str
    framework: str = "pytorch"
    model: str = ""
    dataset: str = ""
    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    distributed: Distributed = Distributed()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    checkpointing: Checkpointing = Checkpointing()
    compression: Compression = Compression()
    recovery: Recovery = Recovery()
    elastic: Elastic | None = None
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    seed: int | None = None
    priority: int = 0
    max_workers: int | None = None
    scheduler: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict)
    project: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()

    @property
    def retries(self) -> int:
        """Return how often its workers are started again after a failure."""
        if self.recovery.policy is Policy.FAIL:
            return 0
        if self.recovery.attempts is not None:
            return self.recovery.attempts
        return RETRIES if self.checkpointing.enabled else 0
