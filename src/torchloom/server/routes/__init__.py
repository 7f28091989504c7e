"""One module a group of routes; each has a `router` with whole paths."""

from torchloom.server.routes import (
    checkpoints,
    cluster,
    commands,
    dashboard,
    devices,
    experiments,
    health,
    jobs,
    logs,
    manual,
    metrics,
    people,
    preview,
    prometheus,
    specs,
    streams,
)
from torchloom.server.routes.dashboard import not_found

__all__ = ["ROUTERS", "not_found"]

ROUTERS = (
    health.router,
    jobs.router,
    specs.router,
    checkpoints.router,
    commands.router,
    preview.router,
    cluster.router,
    devices.router,
    experiments.router,
    people.router,
    people.own_router,
    logs.router,
    metrics.router,
    prometheus.router,
    dashboard.router,
    manual.router,
    streams.router,
)
