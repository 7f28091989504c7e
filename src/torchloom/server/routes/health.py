"""Whether the server is alive, and whether it is ready."""

import asyncio
import os
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from torchloom.server.models import cluster as models
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import declared
from torchloom.weaver.store import StateLost

_PATIENCE = 3.0  # seconds for the weaver's reply
_UNWELL = "the {} database is damaged or not the one that was opened; see `loom doctor`"
_SHOWN = ("epoch", "pid", "host", "connected", "jobs", "agents", "ranks")
router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=models.Health)
async def healthy() -> Any:
    """Whether this process answers, whatever the state of the weaver."""
    return {"status": "ok", "pid": os.getpid(), "version": version("torchloom")}


@router.get("/readyz", response_model=models.Readiness, responses=declared(503))
async def ready(access: AccessDep) -> Any:
    """Whether the weaver answers, and the database can be read and is the one it opened.

    Without the database of records jobs keep running: the status is ready, and `problems` says so.
    """
    status, _ = await asyncio.gather(
        access.link.ask("status", patience=_PATIENCE), access.read(access.store.check)
    )
    shown = {name: status[name] for name in _SHOWN if name in status}
    problems = status.get("problems", {})  # their words have paths, which are not for strangers
    if "state" in problems:
        raise StateLost(_UNWELL.format("state"))
    degraded = [_UNWELL.format(name) for name in problems]
    return {"status": "ready", "weaver": shown, "database": "readable", "problems": degraded}
