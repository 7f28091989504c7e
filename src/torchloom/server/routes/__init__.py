"""One module a group of routes; each has a `router` with whole paths."""

from torchloom.server import stream
from torchloom.server.routes import (
    checkpoints,
    cluster,
    commands,
    devices,
    experiments,
    health,
    jobs,
    logs,
    metrics,
    people,
    prometheus,
)

ROUTERS = (
    health.router,
    jobs.router,
    checkpoints.router,
    commands.router,
    cluster.router,
    devices.router,
    experiments.router,
    people.router,
    logs.router,
    metrics.router,
    prometheus.router,
    stream.router,
)
