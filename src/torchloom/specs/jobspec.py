"""What a user submits: a program or a built-in training, resources, recovery.

The public format of jobs: `jobspec_shape` builds one from plain data, a component makes an app of
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

STALENESS = 8  # steps that a worker of parameter servers may be ahead, where the job says nothing
RETRIES = 3  # of a job that saves and sets no number of attempts


class Framework(StrEnum):
    """What runs a ready-made training."""

    PYTORCH = "pytorch"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    HUGGINGFACE = "huggingface"


class Strategy(StrEnum):
    """How one model is trained by several workers."""

    DATA_PARALLEL = "data_parallel"
    FSDP = "fsdp"
    HSDP = "hsdp"
    TENSOR_PARALLEL = "tensor_parallel"
    PIPELINE_PARALLEL = "pipeline_parallel"
    HYBRID = "hybrid"
    PARAMETER_SERVER = "parameter_server"


class PushMode(StrEnum):
    """When a parameter server applies what workers push: from all at once, or from each alone."""

    SYNC = "sync"
    ASYNC = "async"


class Schedule(StrEnum):
    """In which order the stages of a pipeline run the microbatches forward and backward."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Algorithm(StrEnum):
    """How gradients are compressed before they are sent."""

    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"
    TOPK = "topk"
    ONEBIT = "onebit"
    INT8 = "int8"


class Backend(StrEnum):
    """What runs collectives; `auto` is nccl where every worker has a GPU, else gloo."""

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
    """How many workers, and the resources of each."""

    workers: int = 1
    """Number of workers (ranks), 1 to 100000."""
    cpus_per_worker: int = 1
    """CPUs of each worker."""
    gpus_per_worker: int = 0
    """GPUs of each worker."""
    memory_mb_per_worker: int = 0
    """Memory of each worker in MB; 0 means no limit."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """How the workers are arranged; the product of the sizes is their number."""

    dp_replicate: int = 1
    """Copies of the model."""
    dp_shard: int = 1
    """Workers that share the parameters of one copy, each with its own samples."""
    tp: int = 1
    """Workers that share the computation of each layer, with the same samples."""
    pp: int = 1
    """Workers that have the layers in stages, one after another, with the same samples."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """How the workers work together."""

    strategy: Strategy = Strategy.DATA_PARALLEL
    """How one model is trained by several workers."""
    backend: Backend = Backend.AUTO
    """What runs collectives; `auto` is `nccl` where every worker has a GPU, else `gloo`."""
    mesh: Mesh | None = None
    """How the workers are arranged; without it the strategy takes all of them."""
    sequence_parallel: bool = False
    """Whether tensor parallelism also divides the activations between its layers."""
    schedule: Schedule | None = None
    """The order in which the stages of a pipeline run microbatches; by default `1f1b`."""
    microbatches: int | None = None
    """Parts of a batch that are in the pipeline one after another; by default one a stage."""
    comm_timing: int | None = None
    """Time the collectives of every so many steps, as metrics `comm/...`; by default of none."""
    servers: int | None = None
    """Parameter servers, not counted as workers; by default one for four workers, at least one."""
    push: PushMode | None = None
    """Whether parameter servers wait for all workers (`sync`, the default) or not (`async`)."""
    staleness: int | None = None
    """With `push: async`: how many steps a worker may be ahead of the slowest; by default 8."""

    @property
    def bound(self) -> int | None:
        """Return how far workers of parameter servers may be apart; None if they keep step."""
        if self.push is not PushMode.ASYNC:
            return None
        return STALENESS if self.staleness is None else self.staleness


class Mode(StrEnum):
    """Which value of a metric is the best one."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """When to save, where, and what is kept; the newest is always kept."""

    enabled: bool = False
    """Whether the job saves checkpoints."""
    every_n_steps: int | None = 200
    """Save every so many steps. The default does not apply where `every_n_seconds` is given."""
    every_n_seconds: float | None = None
    """Save every so many seconds, 0.1 or more."""
    store: str = "local"
    """`local` (the run's own folder), another folder, or `s3://bucket/prefix`."""
    keep_last: int = 3
    """How many of the newest checkpoints are kept."""
    keep_every: int | None = None
    """Also keep those whose step is a multiple of this."""
    best: str | None = None
    """Also keep the one that is best by this metric."""
    mode: Mode = Mode.MIN
    """Which value of that metric is the best one."""


@dataclass(frozen=True, slots=True)
class Compression:
    """What the workers of `data_parallel` send each other instead of whole gradients."""

    enabled: bool = False
    """Whether the rest of this section applies."""
    algorithm: Algorithm | None = None
    """How gradients are compressed."""
    k: float | None = None
    """Of `topk`: the share of gradients that is sent, by default 0.01; the knob `compression.k`."""
    rank: int | None = None
    """Of `powersgd`: the rank of the matrices that are sent, by default 1."""
    block: int | None = None
    """Of `int8`: how many gradients share a scale, by default 256."""
    warmup_steps: int | None = None
    """Of `powersgd` and `onebit`: first steps without compression, by default 10 and 100."""
    sync_every: int | None = None
    """Instead of an algorithm: exchange weights every so many steps, and no gradients (DiLoCo);
    the knob `sync_every`."""
    outer_lr: float | None = None
    """Of `sync_every`: the learning rate of the outer optimizer, by default 0.7."""
    outer_momentum: float | None = None
    """Of `sync_every`: the Nesterov momentum of the outer optimizer, by default 0.9."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What follows when a worker is lost."""

    policy: Policy | None = None
    """The policy; without one, the one that fits the program: `live` if it uses the API,
    else `restart`."""
    attempts: int | None = None
    """How often the workers are restarted; by default 3 times for a job that saves, else
    never."""
    backoff: float = 0.0
    """Seconds before the second attempt; twice as many before each further one."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Between how many workers a job may keep training."""

    min: int
    """The fewest workers."""
    max: int
    """The most workers."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A value that may be changed while the job runs; a knob may be written as its value alone."""

    value: bool | int | float | str
    """The value that the job starts with."""
    min: float | None = None
    """The least value that is accepted."""
    max: float | None = None
    """The greatest value that is accepted."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: exactly one of `model`, `script`, `module` and `command` names what runs."""

    name: str
    """Letters, digits, `.`, `_` and `-`; at most 64."""
    framework: Framework = Framework.PYTORCH
    """The framework of a built-in training."""
    model: str = ""
    """A built-in training: `mlp`, `cnn`, `transformer`, or `module:package.function`; for
    `huggingface` a type of transformers, such as `gpt2`, or the path of a `config.json`."""
    dataset: str = ""
    """Its data: `synthetic`, `synthetic:N`, `text:FILE`, `npz:FILE`, `module:package.function`."""
    script: str = ""
    """Your program: the path of a Python file or another executable."""
    module: str = ""
    """Your program: a Python module, run as `python -m` does."""
    command: tuple[str, ...] = ()
    """Your program: the words of a command."""
    args: tuple[str, ...] = ()
    """Arguments of the program."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the workers; values that begin with `secret:` are encrypted."""
    resources: Resources = Resources()
    """How many workers, and the resources of each."""
    distributed: Distributed = Distributed()
    """How the workers work together."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the program reads; they appear in the record of the run."""
    checkpointing: Checkpointing = Checkpointing()
    """When to save, where, and what is kept."""
    compression: Compression = Compression()
    """What the workers send each other instead of whole gradients."""
    recovery: Recovery = Recovery()
    """What follows when a worker is lost."""
    elastic: Elastic | None = None
    """Between how many workers the job may keep training."""
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    """Values that may be changed while the job runs."""
    seed: int | None = None
    """Seed of the random generators; not negative."""
    priority: int = 0
    """Place in the queue, -1000 to 1000; a higher one starts first."""
    max_workers: int | None = None
    """The job never has more workers than this."""
    scheduler: str = "local"
    """The engine that runs it; `loom engines` lists them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine; `loom engines NAME` lists them."""
    project: str = ""
    """Label: the project."""
    group: str = ""
    """Label: the group of runs."""
    tags: tuple[str, ...] = ()
    """Labels: free words."""

    @property
    def retries(self) -> int:
        """Return how often its workers are started again after a failure."""
        if self.recovery.policy is Policy.FAIL:
            return 0
        if self.recovery.attempts is not None:
            return self.recovery.attempts
        return RETRIES if self.checkpointing.enabled else 0
