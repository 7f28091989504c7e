"""Live messages over WebSocket: of one job, of several, or of the topics of a page."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, WebSocket
from starlette.websockets import WebSocketState

from torchloom.errors import LoomError, UserError
from torchloom.server.models.common import Name
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import explained
from torchloom.server.security.auth import ENDED, Identities, identity_of
from torchloom.server.stream import cursors
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.hub import Hub, Listener, StreamFilter
from torchloom.server.stream.payloads import TYPES
from torchloom.server.stream.senders import ClientSender, sender_of
from torchloom.server.stream.topics.session import serve_page

router = APIRouter()

NOT_TAKEN: Final = 1003  # a client sends nothing here
_GONE = "websocket.disconnect"
_MOST_JOBS = 50

Work = Coroutine[Any, Any, None]
Types = Annotated[
    str | None, Query(description=f"only these types, of {', '.join(TYPES)}; default: all")
]
Ranks = Annotated[
    str | None, Query(description="messages of these ranks, and messages without a rank")
]


class BadStreamQuery(UserError):
    """A query parameter that no stream has."""

    code = "bad_value"

    def __init__(self, field: str, why: str, remedy: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.remedy = remedy


@router.websocket("/api/jobs/{id}/stream")
async def job_stream(
    websocket: WebSocket,
    access: AccessDep,
    job: Name,
    types: Types = None,
    ranks: Ranks = None,
    after: str | None = None,
) -> None:
    """Send what happens to one job, from now on or from a cursor on."""
    try:
        wanted = filter_of(types, ranks)
        position = cursors.parse(after) if after else None
        name = await access.job(job)
    except LoomError as error:
        await websocket.send_denial_response(explained(error))
        return
    await serve(websocket, wanted, {name: position})


@router.websocket("/api/stream")
async def many_streams(
    websocket: WebSocket,
    access: AccessDep,
    jobs: Annotated[str | None, Query(description="their ids, with commas between")] = None,
    types: Types = None,
    ranks: Ranks = None,
    after: Annotated[list[str] | None, Query(description="JOB:CURSOR, one for each")] = None,
) -> None:
    """Send what happens to several jobs; a cursor is of the job that its message names.

    Without jobs it is the socket of a page, which subscribes to topics.
    """
    if jobs is None:
        await serve_page(websocket, access)
        return
    try:
        wanted = filter_of(types, ranks)
        names = [await access.job(name) for name in _several(jobs)]
        positions = _positions(after or ())
    except LoomError as error:
        await websocket.send_denial_response(explained(error))
        return
    await serve(websocket, wanted, {name: positions.get(name) for name in names})


async def serve(
    websocket: WebSocket, wanted: StreamFilter, positions: Mapping[str, Position | None]
) -> None:
    """Serve one client until it leaves, is too slow, or loses its rights."""
    hub: Hub = websocket.app.state.live
    listeners = [Listener(job, wanted) for job in positions]
    try:
        begins = [await hub.attach(each, positions[each.job]) for each in listeners]
        await websocket.accept()  # the client receives whatever is stored after this
        sender = sender_of(websocket)
        work = [_receive(websocket, sender), _revoked(websocket, sender)]
        for listener, goal in zip(listeners, begins, strict=True):
            listener.sender = sender
            work.append(hub.catch_up(listener, positions[listener.job], goal))
        await _until_first(*work)
    except LoomError as error:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(explained(error))
        else:
            raise
    finally:
        for listener in listeners:
            hub.leave(listener)


def filter_of(types: str | None, ranks: str | None) -> StreamFilter:
    """Return which messages an address asks for."""
    wanted = frozenset(_words(types)) or frozenset(TYPES)
    if unknown := sorted(wanted - set(TYPES)):
        raise BadStreamQuery(
            "types", f"no type {unknown[0][:40]!r}", f"choose from {', '.join(TYPES)}"
        )
    numbers = _words(ranks)
    if not all(word.isdecimal() and len(word) < 10 for word in numbers):
        raise BadStreamQuery("ranks", "a rank is a number", "write ranks=0,1,2")
    return StreamFilter(wanted, frozenset(map(int, numbers)) or None)


async def _until_first(first: Work, *others: Work) -> None:
    """Return when the first task ends; raise when one fails."""
    tasks = [asyncio.ensure_future(work) for work in (first, *others)]
    waiting = set(tasks)
    try:
        while not tasks[0].done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _receive(websocket: WebSocket, sender: ClientSender) -> None:
    """Return when the client disconnects; it may send pings only."""
    while (await websocket.receive())["type"] != _GONE:
        sender.drop(NOT_TAKEN, "this stream takes no messages; the query selects the data")


async def _revoked(websocket: WebSocket, sender: ClientSender) -> None:
    """Drop the client when its token is revoked or expires."""
    identities: Identities | None = getattr(websocket.app.state, "identities", None)
    if identities is not None and "identity" in websocket.scope.get("state", {}):
        await identities.watch(identity_of(websocket))
        sender.drop(ENDED, "the token was revoked; get another and connect again")


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _several(jobs: str) -> Sequence[str]:
    names = list(dict.fromkeys(_words(jobs)))
    if not 0 < len(names) <= _MOST_JOBS:
        raise BadStreamQuery(
            "jobs", f"{len(names)} are named", f"name 1 to {_MOST_JOBS}, as jobs=A,B"
        )
    return names


def _positions(after: Sequence[str]) -> dict[str, Position]:
    found = {}
    for text in after:
        job, _, cursor = text.rpartition(":")
        found[job] = cursors.parse(cursor)
    return found
