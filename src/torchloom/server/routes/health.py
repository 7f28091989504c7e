"""Whether the server lives, and whether it can do its work."""

import asyncio
import os
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from torchloom.server import models
from torchloom.server.desk import DeskDep
from torchloom.server.problems import declared

_PATIENCE = 3.0  # seconds for the weaver: whoever asks wants to know now
_SHOWN = ("epoch", "pid", "host", "connected", "jobs", "agents", "ranks")
router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=models.Health)
async def healthy() -> Any:
    """That this process answers; it says nothing of anybody else."""
    return {"status": "ok", "pid": os.getpid(), "version": version("torchloom")}


@router.get("/readyz", response_model=models.Readiness, responses=declared(503))
async def ready(desk: DeskDep) -> Any:
    """That the weaver answers and the database can be read."""
    status, _ = await asyncio.gather(
        desk.link.ask("status", patience=_PATIENCE), desk.read(desk.store.check)
    )
    shown = {name: status[name] for name in _SHOWN if name in status}
    return {"status": "ready", "weaver": shown, "database": "readable"}
