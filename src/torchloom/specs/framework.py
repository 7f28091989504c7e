"""What a ready-made training can do in each framework, and why a job does not fit its own.

A worker imports the framework; the extra that installs it is named here, where both find it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchloom.errors import shorten
from torchloom.specs.jobspec import Framework, JobSpec, Policy, Strategy
from torchloom.specs.validate import Problem

MODULE = "module:"  # prefix of the name of a user's function
_REPLICATED = (Strategy.DATA_PARALLEL,)
_PRECISION = "hyperparameters.amp"
_READERS = "hyperparameters.loader_workers"


@dataclass(frozen=True, slots=True)
class FrameworkLimits:
    """What a framework is trained with here."""

    package: str  # that a worker imports
    extra: str  # that installs it
    models: tuple[str, ...] = ()  # of ours; empty: not models of ours
    data: tuple[str, ...] = ()  # kinds of datasets; empty: all
    strategies: tuple[Strategy, ...] = tuple(Strategy)
    precisions: tuple[str, ...] = ("off", "bf16", "fp16")
    is_torch: bool = True  # whether torch computes


LIMITS: Mapping[Framework, FrameworkLimits] = {
    Framework.PYTORCH: FrameworkLimits("torch", "torch", ("mlp", "cnn", "transformer")),
    Framework.JAX: FrameworkLimits(
        *("jax", "jax", ("mlp", "transformer"), ()),
        strategies=_REPLICATED,
        precisions=("off", "bf16"),
        is_torch=False,
    ),
    Framework.TENSORFLOW: FrameworkLimits(
        *("tensorflow", "tensorflow", ("mlp",), ()),
        strategies=_REPLICATED,
        precisions=("off",),
        is_torch=False,
    ),
    Framework.HUGGINGFACE: FrameworkLimits(
        *("transformers", "transformers", (), ("text",)), strategies=_REPLICATED
    ),
}


def framework_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield why a job cannot be trained by its framework, by field."""
    framework, limits = spec.framework, LIMITS[spec.framework]
    if framework is Framework.PYTORCH:
        return
    if not spec.model:
        problem = f"{framework} is for a ready-made training: remove it"
        yield "framework", f"{problem}; a program of your own imports what it needs"
        return
    yield from _model_problems(spec, limits)
    yield from _training_problems(spec, limits)
    if not limits.is_torch:
        yield from _foreign_problems(spec)


def _model_problems(spec: JobSpec, limits: FrameworkLimits) -> Iterator[Problem]:
    framework, model = spec.framework, shorten(spec.model)
    if limits.models and spec.model not in limits.models:
        known = " or ".join(limits.models)
        yield "model", f"{framework} has no model {model}: take {known}, or framework pytorch"
    elif not limits.models and _is_ours(spec.model):
        what = "a type of transformers, such as gpt2, or the path of a config.json"
        yield "model", f"{model} is not {what}: give one, or take framework pytorch"
    if not limits.models and "dropout" in spec.hyperparameters:
        problem = "is in the configuration of the model itself: remove it, or give a config.json"
        yield "hyperparameters.dropout", problem
    kind = spec.dataset.partition(":")[0]
    if limits.data and kind not in limits.data:
        there = " or ".join(f"{kind}:FILE" for kind in limits.data)
        yield "dataset", f"{framework} trains language models here: take {there}"


def _is_ours(model: str) -> bool:
    return model in LIMITS[Framework.PYTORCH].models or model.startswith(MODULE)


def _training_problems(spec: JobSpec, limits: FrameworkLimits) -> Iterator[Problem]:
    strategy, precision = spec.distributed.strategy, spec.hyperparameters.get("amp")
    if strategy not in limits.strategies:
        there = ", ".join(limits.strategies)
        problem = f"{strategy.value} is not there for {spec.framework}: take {there}"
        yield "distributed.strategy", f"{problem}, or framework pytorch"
    if isinstance(precision, str) and precision not in limits.precisions:
        there = " or ".join(limits.precisions)
        yield _PRECISION, f"{spec.framework} has no {shorten(precision)} here: take {there}"


def _foreign_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what cannot be, where the ranks exchange gradients without torch."""
    if spec.recovery.policy in (Policy.LIVE, Policy.SHRINK):
        problem = f"{spec.recovery.policy.value} cannot replace a worker of {spec.framework}"
        yield "recovery.policy", f"{problem}, which ends with its peers: take restart or fail"
    if spec.compression.enabled:
        problem = f"{spec.framework} exchanges gradients as they are"
        yield "compression.enabled", f"{problem}: leave it out, or take framework pytorch"
    if spec.hyperparameters.get("loader_workers"):
        problem = f"{spec.framework} has threads that a forked reader would lack"
        yield _READERS, f"{problem}: remove it, each worker reads its data itself"
