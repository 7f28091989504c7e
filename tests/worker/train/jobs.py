"""Jobs for tests, and where their words go."""

import json
from typing import Any

from torchloom.specs.jobspec import JobSpec
from torchloom.specs.jobspec_shape import job_from_dict

PLAIN = {"name": "x", "model": "mlp", "dataset": "synthetic:500"}


def job(hyper: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    """Return a job with these hyperparameters and fields."""
    return job_from_dict({**PLAIN, "hyperparameters": hyper or {}, **fields})


def words(hyper: dict[str, Any] | None = None, **fields: Any) -> str:
    """Return a job as its ranks are told it."""
    return json.dumps({**PLAIN, "hyperparameters": hyper or {}, **fields})
