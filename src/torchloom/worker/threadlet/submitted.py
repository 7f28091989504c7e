"""What a submitted job says to its program: hyperparameters, knobs, seed, checkpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VARIABLE = "LOOM_JOB_SPEC"


@dataclass(frozen=True, slots=True)
class Submitted:
    """Of a job what its program can use; nothing for a program that nobody submitted."""

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # value, min, max
    checkpointing: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def submitted(env: Mapping[str, str]) -> Submitted:
    """Return what a rank's environment says of its job; what makes no sense says nothing."""
    try:
        spec = json.loads(env.get(VARIABLE) or "{}")
    except ValueError:
        return Submitted()
    if not isinstance(spec, dict):
        return Submitted()
    knobs = {name: _knob(said) for name, said in _mapping(spec, "knobs").items()}
    seed = spec.get("seed")
    return Submitted(
        hyperparameters=_mapping(spec, "hyperparameters"),
        knobs=knobs,
        checkpointing=_mapping(spec, "checkpointing"),
        seed=seed if type(seed) is int else None,
    )


def _mapping(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def _knob(said: Any) -> Mapping[str, Any]:
    return said if isinstance(said, dict) else {"value": said}
