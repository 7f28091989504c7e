"""Put the server together: routes, what they may use, and what stands before them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

from torchloom.server import live, openapi, policy, problems
from torchloom.server.access import log_request
from torchloom.server.auth import identities_of
from torchloom.server.body import BodyLimit
from torchloom.server.counts import Counts
from torchloom.server.desk import Desk
from torchloom.server.guard import Guard
from torchloom.server.hosts import Reach
from torchloom.server.passing import Passing
from torchloom.server.routes import ROUTERS

Live = Callable[[FastAPI], AbstractAsyncContextManager[None]]
LIVES: tuple[Live, ...] = (live.lifespan,)  # what goes on beside requests


@dataclass(frozen=True, slots=True)
class Front:
    """How a server is reached: by which names, and whether TLS is spoken by whose word."""

    reach: Reach
    tls: bool = False
    authority: Path | None = None


def build(desk: Desk, front: Front) -> FastAPI:
    """Return the app; one with a route that has no row in the policy is not built."""
    app = FastAPI(
        title="torchLoom",
        version=version("torchloom"),
        docs_url=None,  # the framework's page is loaded from elsewhere
        redoc_url=None,
        lifespan=_life,
    )
    app.state.desk = desk
    app.state.link = desk.link
    app.state.counts = Counts()
    app.state.identities = identities_of(desk.store.state)
    app.state.tls = front.tls
    app.state.authority = front.authority
    for router in ROUTERS:
        app.include_router(router)
    problems.register(app)
    openapi.describe(app)
    policy.check(app)
    return app


def guarded(app: FastAPI, front: Front) -> ASGIApp:
    """Return the app behind everything that a request must pass first."""
    behind = Guard(BodyLimit(app), app.state.identities, front.reach)
    return Passing(behind, log_request, app.state.counts.count)


@contextlib.asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(desk.close)
        for each in LIVES:
            await stack.enter_async_context(each(app))
        yield
