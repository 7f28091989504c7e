"""What each framework of a ready-made training can do; anything else is refused by field."""

from typing import Any

import pytest

from torchloom.specs.exceptions import SpecError
from torchloom.specs.framework import LIMITS
from torchloom.specs.jobspec import Framework
from torchloom.specs.jobspec_shape import job_from_dict, job_to_dict

MLP = {"name": "x", "model": "mlp", "dataset": "synthetic"}
SMALL = {"name": "x", "model": "gpt2", "dataset": "text:a"}
LIVE = {"policy": "live"}


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_every_framework_has_the_mlp(framework: str) -> None:
    spec = job_from_dict({**MLP, "framework": framework})

    assert spec.framework is Framework(framework)
    assert job_from_dict(job_to_dict(spec)) == spec
    assert job_to_dict(spec)["framework"] == framework


def test_every_framework_has_its_limits() -> None:
    assert LIMITS.keys() == set(Framework)


@pytest.mark.parametrize("model", ["gpt2", "llama", "configs/small.json", "~/models/mine"])
def test_a_model_of_transformers_is_a_type_or_a_path(model: str) -> None:
    spec = job_from_dict({**SMALL, "framework": "huggingface", "model": model})

    assert spec.model == model


@pytest.mark.parametrize(
    ("framework", "change", "path", "words"),
    [
        ("jax", {"model": "", "dataset": "", "script": "a.py"}, "framework", "remove it"),
        ("jax", {"model": "cnn"}, "model", "jax has no model cnn: take mlp or transformer"),
        ("jax", {"model": "module:a.b"}, "model", "take mlp or transformer, or framework pytorch"),
        ("jax", {"distributed": {"strategy": "fsdp"}}, "distributed.strategy", "data_parallel"),
        ("jax", {"recovery": LIVE}, "recovery.policy", "take restart or fail"),
        ("jax", {"recovery": {"policy": "shrink"}}, "recovery.policy", "take restart or fail"),
        ("jax", {"hyperparameters": {"amp": "fp16"}}, "hyperparameters.amp", "take off or bf16"),
        ("jax", {"hyperparameters": {"loader_workers": 1}}, "hyperparameters.loader_workers", ""),
        ("jax", {"compression": {"enabled": True, "algorithm": "fp16"}}, "compression.enabled", ""),
        ("tensorflow", {"model": "transformer"}, "model", "take mlp, or framework pytorch"),
        ("tensorflow", {"hyperparameters": {"amp": "bf16"}}, "hyperparameters.amp", "take off"),
        ("tensorflow", {"recovery": LIVE}, "recovery.policy", "cannot replace a worker"),
        ("huggingface", {"model": "mlp"}, "model", "mlp is not a type of transformers"),
        ("huggingface", {"model": "gpt2"}, "dataset", "take text:FILE"),
        (
            "huggingface",
            {"model": "gpt2", "dataset": "text:a", "distributed": {"strategy": "tensor_parallel"}},
            *("distributed.strategy", "take data_parallel, or framework pytorch"),
        ),
        (
            "huggingface",
            {"model": "gpt2", "dataset": "text:a", "hyperparameters": {"dropout": 0.1}},
            *("hyperparameters.dropout", "give a config.json"),
        ),
    ],
)
def test_what_a_framework_cannot_do_is_refused_by_field(
    framework: str, change: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        job_from_dict({**MLP, "framework": framework, **change})

    assert caught.value.path == path
    assert words in caught.value.problem
