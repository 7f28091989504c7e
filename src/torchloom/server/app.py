"""Assemble the server: routes, the access they use, and the middleware before them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

from torchloom.server import openapi, problems, verification
from torchloom.server.access_log import Counts, Passing, log_request
from torchloom.server.bundle import NO_BUNDLE, Bundle
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.routes import ROUTERS, not_found
from torchloom.server.security import policy
from torchloom.server.security.auth import identities_of
from torchloom.server.security.guard import Reach, RequestGuard
from torchloom.server.security.limits import BodyLimit
from torchloom.server.stream import hub
from torchloom.server.stream.topics import session

Live = Callable[[FastAPI], AbstractAsyncContextManager[None]]
# background work of the app
LIVES: tuple[Live, ...] = (hub.lifespan, verification.lifespan, session.lifespan)


@dataclass(frozen=True, slots=True)
class Front:
    """How a server is reached (names, TLS and by whose word it is trusted), and what it shows."""

    reach: Reach
    tls: bool = False
    authority: Path | None = None
    bundle: Bundle = NO_BUNDLE
    manual: Bundle = NO_BUNDLE


def build(access: PlaneAccess, front: Front) -> FastAPI:
    """Return the app; one with a route that has no row in the policy is not built."""
    app = FastAPI(
        title="torchLoom",
        version=version("torchloom"),
        docs_url=None,  # the framework's page is loaded from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.access = access
    app.state.link = access.link
    app.state.counts = Counts()
    app.state.identities = identities_of(access.store.state)
    app.state.tls = front.tls
    app.state.authority = front.authority
    app.state.bundle = front.bundle
    app.state.manual = front.manual
    for router in ROUTERS:
        app.include_router(router)
    problems.register(app)
    openapi.describe(app)
    policy.check(app)
    return app


def guarded(app: FastAPI, front: Front) -> ASGIApp:
    """Return the app behind everything that a request must pass first."""
    shown, identities = partial(not_found, front.bundle), app.state.identities
    behind = RequestGuard(BodyLimit(app), identities, front.reach, not_found=shown)
    return Passing(behind, log_request, app.state.counts.count)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    access: PlaneAccess = app.state.access
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(access.close)
        for each in LIVES:
            await stack.enter_async_context(each(app))
        yield
