"""Hyperparameters of the ready-made training, with their types, defaults and ranges.

It does not import torch, so that jobs can be checked without it.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.framework import MODULE
from torchloom.specs.jobspec import Framework, JobSpec, Knob
from torchloom.specs.mesh import SIZES
from torchloom.specs.shape import at, refuse

LIVE = ("lr", "weight_decay", "momentum", "clip")  # may change while the job runs
_FIXED = "cannot be changed while the job runs: give it in hyperparameters"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"  # YAML reads 1e-3 as text
_RISING = "schedule", ("constant", "linear", "cosine", "step")
MODELS: Mapping[str, str] = {"mlp": "features", "cnn": "features", "transformer": "tokens"}
DATASETS: Mapping[str, str] = {"synthetic": "features", "text": "tokens", "npz": "features"}
_OWN = f"{MODULE}package.function"
_SPELLED = ("synthetic", "synthetic:N", "text:FILE", "npz:FILE", _OWN)


@dataclass(frozen=True, slots=True)
class HyperparameterLimits:
    """The values that a hyperparameter may have, and the models or settings it is for."""

    says: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    only: tuple[str, tuple[str, ...]] | None = None  # another field, and the values it must have

    def take(self, value: object, default: Any, path: str) -> Any:
        """Return the value in the type of the default; raise SpecError if it does not fit."""
        if self.choices:
            return self._chosen("off" if value is False else value, path)
        if isinstance(value, str) and isinstance(default, float) and re.fullmatch(_NUMBER, value):
            value = float(value)
        kinds = int if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            what = "a whole number" if isinstance(default, int) else "a number"
            raise refuse(path, f"{what} from {self.span}", value)
        if not self.low <= value <= self.high:
            raise SpecError(path, f"must be {self.span}, is {value}")
        return type(default)(value)

    @property
    def span(self) -> str:
        """The range in words."""
        low, high = (f"{end:g}" if isinstance(end, float) else end for end in (self.low, self.high))
        return f"{low} to {high}"

    def _chosen(self, value: object, path: str) -> str:
        if isinstance(value, str) and value in self.choices:
            return value
        hint = nearest(value, self.choices) if isinstance(value, str) else ""
        there = f"known: {', '.join(self.choices)}"
        shown = shorten(repr(value))
        raise SpecError(path, "; ".join(word for word in (f"no {shown}", hint, there) if word))


def _of(default: Any, says: str, low: float, high: float, only: Any = None) -> Any:
    return field(
        default=default, metadata={"limits": HyperparameterLimits(says, low, high, only=only)}
    )


def _one_of(says: str, *choices: str) -> Any:
    return field(
        default=choices[0], metadata={"limits": HyperparameterLimits(says, choices=choices)}
    )


def _for(*models: str) -> tuple[str, tuple[str, ...]]:
    return "model", models


@dataclass(frozen=True, slots=True)
class Hyper:
    """The hyperparameters of a ready-made training; the first choice of each is the default."""

    batch_size: int = _of(
        SIZES["batch_size"], "samples that each worker takes at a time", 1, 1 << 20
    )
    epochs: int = _of(1, "times the data is iterated", 1, 1 << 20)
    lr: float = _of(0.001, "learning rate, where the schedule has its peak", 0.0, 100.0)
    optimizer: str = _one_of("how gradients become steps", "adam", "adamw", "sgd")
    weight_decay: float = _of(0.0, "weight decay", 0.0, 10.0)
    momentum: float = _of(0.0, "momentum", 0.0, 1.0, ("optimizer", ("sgd",)))
    clip: float = _of(0.0, "longest gradient (its norm); 0 is no limit", 0.0, 1e9)
    accumulate: int = _of(1, "batches that make up the gradient of a step", 1, 1 << 16)
    schedule: str = _one_of(
        "how the learning rate changes over the steps",
        *("constant", "linear", "cosine", "step", "onecycle"),
    )
    warmup_steps: int = _of(0, "steps in which the learning rate rises", 0, 10**9, _RISING)
    decay_to: float = _of(
        0.0, "fraction of lr at the end", 0.0, 1.0, ("schedule", ("linear", "cosine"))
    )
    step_size: int = _of(1000, "steps between two drops", 1, 10**9, ("schedule", ("step",)))
    gamma: float = _of(0.1, "factor of lr at each drop", 0.0, 1.0, ("schedule", ("step",)))
    amp: str = _one_of("automatic mixed precision; fp16 needs a GPU", "off", "bf16", "fp16")
    eval_fraction: float = _of(0.1, "share of the data to evaluate on; 0 is none", 0.0, 0.9)
    loader_workers: int = _of(0, "processes that read data for each worker", 0, 256)
    hidden: int = _of(SIZES["hidden"], "width of a hidden layer", 1, 1 << 16, _for("mlp"))
    layers: int = _of(
        SIZES["layers"], "hidden layers, or blocks", 1, 256, _for("mlp", "transformer")
    )
    channels: int = _of(16, "channels of the first convolution", 1, 1 << 12, _for("cnn"))
    width: int = _of(
        SIZES["width"],
        "size of the embedding of a byte",
        1,
        1 << 14,
        _for("transformer"),
    )
    heads: int = _of(
        SIZES["heads"],
        "heads of attention; they share the width",
        1,
        256,
        _for("transformer"),
    )
    context: int = _of(SIZES["context"], "bytes of a window", 1, 1 << 16, ("dataset", ("text",)))
    dropout: float = _of(0.0, "share of values dropped", 0.0, 0.99, _for("mlp", "transformer"))


TABLE: Mapping[str, tuple[Any, HyperparameterLimits]] = {
    each.name: (each.default, each.metadata["limits"]) for each in fields(Hyper)
}


def hyper_of(spec: JobSpec) -> Hyper:
    """Return a job's hyperparameters; raise SpecError for one that does not fit."""
    values = dict(_taken(spec))
    hyper = Hyper(**values)
    for name in values:
        _check_place("hyperparameters", name, hyper, spec)
    for name, knob in spec.knobs.items():
        if name in TABLE:
            change: dict[str, Any] = {name: _live(name, knob, values)}
            hyper = replace(hyper, **change)
            _check_place("knobs", name, hyper, spec)
    has_heads = spec.model == "transformer" or spec.framework is Framework.HUGGINGFACE
    if has_heads and not is_config(spec) and hyper.width % hyper.heads:
        problem = f"{hyper.heads} heads cannot share a width of {hyper.width}: give a divisor of it"
        raise SpecError("hyperparameters.heads", problem)
    return hyper


def is_own(spec: JobSpec) -> bool:
    """Tell whether a function of the user, with its own hyperparameters, makes model or data."""
    return spec.model.startswith(MODULE) or spec.dataset.startswith(MODULE)


def is_config(spec: JobSpec) -> bool:
    """Tell whether a model of transformers is in a file, not a type with sizes of the job."""
    is_path = "/" in spec.model or spec.model.endswith(".json")
    return spec.framework is Framework.HUGGINGFACE and is_path


def _taken(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    for name, value in spec.hyperparameters.items():
        path = at("hyperparameters", name)
        if name in TABLE and not _is_free(name, spec):
            default, limits = TABLE[name]
            yield name, limits.take(value, default, path)
        elif not is_own(spec):
            hint = nearest(name, TABLE) or f"known: {', '.join(TABLE)}"
            raise SpecError(path, f"unknown hyperparameter; {hint}")


def _is_free(name: str, spec: JobSpec) -> bool:
    """Tell whether a name belongs to a model that the user's function defines."""
    only = TABLE[name][1].only
    return spec.model.startswith(MODULE) and only is not None and only[0] == "model"


def _check_place(where: str, name: str, hyper: Hyper, spec: JobSpec) -> None:
    """Raise SpecError for a value that would not be used."""
    default, limits = TABLE[name]
    if limits.only is None or getattr(hyper, name) == default:
        return
    other, wanted = limits.only
    if other in ("model", "dataset") and is_own(spec):
        return  # the user's function may use it
    is_hugging = spec.framework is Framework.HUGGINGFACE
    kinds = {
        "model": "transformer" if is_hugging else spec.model,  # of the same sizes
        "dataset": spec.dataset.partition(":")[0],
    }
    found = kinds.get(other) or getattr(hyper, other)
    if found not in wanted:
        problem = f"is for {other} {' or '.join(wanted)}, not {shorten(found)}: remove it"
        raise SpecError(at(where, name), problem)


def _live(name: str, knob: Knob, given: Mapping[str, Any]) -> float:
    """Return the value of a knob for the hyperparameter of its name."""
    path = at("knobs", name)
    if name not in LIVE:
        raise SpecError(path, _FIXED)
    default, limits = TABLE[name]
    for bound in (knob.value, knob.min, knob.max):
        if bound is not None:
            limits.take(bound, default, path)
    value = float(knob.value)
    if given.get(name, value) != value:
        problem = f"is {value:g}, and {given[name]:g} in hyperparameters: give it once"
        raise SpecError(path, problem)
    return value


Function = Callable[[Mapping[str, Any]], Any]


def unknown(field: str, name: str, known: Iterable[str]) -> SpecError:
    """Return the error for an unknown name."""
    there = tuple(known)
    hints = (f"no {shorten(name)!r}", nearest(name, there), f"known: {', '.join(there)}")
    return SpecError(field, "; ".join(hint for hint in hints if hint))


def own_function(field: str, name: str) -> Function:
    """Return the function that `module:package.function` names."""
    words = name.removeprefix(MODULE)
    module, _, function = words.rpartition(".")
    if not module or not all(part.isidentifier() for part in words.split(".")):
        problem = f"{shorten(name)!r} names no function: write {MODULE}package.function"
        raise SpecError(field, problem)
    found = getattr(_imported(field, module), function, None)
    if not callable(found):
        raise SpecError(field, f"the module {shorten(module)} has no function {shorten(function)}")
    own: Function = found
    return own


def _imported(field: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # something that the module imports
            raise
        problem = f"no module {shorten(module)}: start the job where it lies, or install it"
        raise SpecError(field, problem) from error


def check_job(spec: JobSpec) -> Hyper:
    """Return the hyperparameters of a job for ready-made training; raise SpecError if invalid."""
    if not spec.model:
        raise SpecError("model", "missing: ready-made training takes a model and a dataset")
    is_ready = spec.model in MODELS or spec.framework is Framework.HUGGINGFACE
    if not is_ready and not spec.model.startswith(MODULE):
        raise unknown("model", spec.model, (*MODELS, _OWN))
    kind, colon, rest = spec.dataset.partition(":")
    if not spec.dataset.startswith(MODULE):
        is_named = kind in DATASETS and (bool(rest) if colon else kind == "synthetic")
        if not is_named:
            raise unknown("dataset", spec.dataset, _SPELLED)
        check_fit(spec, DATASETS[kind])
    return hyper_of(spec)


def check_fit(spec: JobSpec, kind: str) -> None:
    """Raise SpecError if the job's model does not take this kind of samples."""
    wanted = MODELS.get(spec.model, kind)
    if kind == wanted:
        return
    data = "text:FILE" if wanted == "tokens" else "synthetic or npz:FILE"
    fitting = " or ".join(name for name, other in MODELS.items() if other == kind)
    problem = f"{spec.model} does not fit dataset {shorten(spec.dataset)}"
    raise SpecError("model", f"{problem}: take dataset {data}, or model {fitting}")
