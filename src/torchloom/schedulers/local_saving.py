"""Where the checkpoints of a run go, and what its job says of saving and of failing. Pure."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchloom import settings
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.variables import JOB_VARIABLE, SPEC_VARIABLE

CHECKPOINTS = "LOOM_CHECKPOINTS"  # where all runs save, unless they say otherwise
DEADLINES = ("LOOM_DEADLINE", "SLURM_JOB_END_TIME")
_HERE = ("", "local")


def saving(request: LaunchRequest, chosen: str, env: Mapping[str, str]) -> LaunchRequest:
    """Return a request that says where its run saves: as was chosen, as its job or the user has it.

    A launch inside another engine's job finds the job in its environment; one inside a rank of
    ours is not that rank's job.
    """
    own = request.roles[0].replicas[0].env if request.roles else {}
    inherited = "" if JOB_VARIABLE in env else env.get(SPEC_VARIABLE, "")
    spec = _spec(own.get(SPEC_VARIABLE, inherited))
    told, recovery = _part(spec, "checkpointing"), _part(spec, "recovery")
    store = str(told.get("store") or "")
    base = next((one for one in (chosen, store) if one not in _HERE), "")
    base = base or own.get(CHECKPOINTS) or env.get(CHECKPOINTS, "")
    return replace(
        request,
        checkpoints=_root(base, request.app_id),
        saves=bool(told.get("enabled")),
        backoff=float(recovery.get("backoff") or 0.0),
        deadline=_deadline(env),
    )


def _deadline(env: Mapping[str, str]) -> int:
    """Return when the allocation ends, in unix seconds: as the user or the engine says; else 0."""
    said = (env.get(name, "") for name in DEADLINES)
    return next((int(text) for text in said if text.isascii() and text.isdecimal()), 0)


def _root(base: str, app_id: str) -> str:
    if base in _HERE:
        return str(settings.runs_dir() / app_id / "checkpoints")
    from torchloom.checkpoint import root_of

    return root_of(base, app_id, settings.runs_dir())


def _spec(text: str) -> dict[str, Any]:
    """Return the job that a program is told of; what is none says nothing."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _part(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}
