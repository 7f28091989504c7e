"""Every request that a weaver answers: its name, its fields, its handler, and at which door."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, Subscription, TooLong
from torchloom.errors import LoomError, NotFound
from torchloom.launch.host import sockets
from torchloom.unix import HEADER, same_user
from torchloom.weaver.api import request as of
from torchloom.weaver.api.checkpoints import CheckpointApi, RetentionApi
from torchloom.weaver.api.commands import CommandApi
from torchloom.weaver.api.queries import QueryApi, RunApi, StackApi
from torchloom.weaver.api.queue import QueueApi
from torchloom.weaver.api.refusals import refusal
from torchloom.weaver.api.request import BadRequest, EventsRequest, WeaverRequest
from torchloom.weaver.api.resumption import PERIOD, ResizeApi, ResumeApi
from torchloom.weaver.api.users import UserApi
from torchloom.weaver.events import Journal
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import StateLost

VERSION = 1
LOCAL = True  # only at the unix socket, whose clients are the plane's own user
_log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=WeaverRequest)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q]):
    """What a request holds, who handles it, and whether the bus may carry it."""

    request: type[Q]
    handler: Callable[[Q], Awaitable[Any]]
    is_local: bool = False


class Router:
    """The table of requests, and how one is answered."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver
        self.queries = queries = QueryApi(weaver)
        runs, stacks = RunApi(weaver), StackApi(weaver)
        commands = CommandApi(weaver)
        resumption = ResumeApi(weaver, commands)
        resizing = ResizeApi(weaver, commands, resumption)
        queue = QueueApi(weaver, queries)
        checkpoints, retention = CheckpointApi(weaver), RetentionApi(weaver)
        users = UserApi(weaver.users)
        weaver.every(PERIOD, resizing.check)
        self._endpoints: Mapping[str, Endpoint[Any]] = {
            "status": Endpoint(WeaverRequest, queries.status),
            "jobs": Endpoint(of.JobsRequest, queries.jobs),
            "job": Endpoint(of.JobRequest, queries.job),
            "ranks": Endpoint(of.JobRequest, queries.ranks),
            "metrics": Endpoint(of.MetricsRequest, queries.metrics),
            "events": Endpoint(of.EventsRequest, queries.events),
            "knobs": Endpoint(of.KnobsRequest, queries.knobs),
            "devices": Endpoint(WeaverRequest, queries.devices),
            "audit": Endpoint(of.JobRequest, queries.audit),
            "stacks": Endpoint(of.JobRequest, stacks.stacks),
            "experiments": Endpoint(of.RunsRequest, runs.experiments),
            "experiment": Endpoint(of.RunRequest, runs.experiment),
            "compare": Endpoint(of.CompareRunsRequest, runs.compare),
            "curves": Endpoint(of.CurvesRequest, runs.curves),
            "set": Endpoint(of.SetRequest, commands.set),
            "undo": Endpoint(of.UndoRequest, commands.undo),
            "stop": Endpoint(of.JobCommandRequest, commands.stop),
            "checkpoint": Endpoint(of.JobCommandRequest, commands.checkpoint),
            "digest": Endpoint(of.DigestRequest, commands.digest, LOCAL),
            "device_event": Endpoint(of.DeviceEventRequest, commands.device_event),
            "device_outlook": Endpoint(of.DeviceImpactRequest, commands.device_outlook),
            "pause": Endpoint(of.PauseRequest, resumption.pause),
            "resume": Endpoint(of.ResumeRequest, resumption.resume),
            "resize": Endpoint(of.ResizeRequest, resizing.resize),
            "checkpoints": Endpoint(of.CheckpointsRequest, checkpoints.checkpoints),
            "checkpoint_remove": Endpoint(
                of.RemoveCheckpointRequest, checkpoints.checkpoint_remove, LOCAL
            ),
            "checkpoint_verified": Endpoint(
                of.CheckpointVerifiedRequest, checkpoints.checkpoint_verified, LOCAL
            ),
            "retain": Endpoint(of.RetainRequest, retention.retain, LOCAL),
            "retention": Endpoint(WeaverRequest, retention.rules, LOCAL),
            "remove": Endpoint(of.RemoveJobRequest, retention.remove, LOCAL),
            "users": Endpoint(WeaverRequest, users.users, LOCAL),
            "user_put": Endpoint(of.PutUserRequest, users.user_put, LOCAL),
            "tokens": Endpoint(of.TokensRequest, users.tokens, LOCAL),
            "token_add": Endpoint(of.AddTokenRequest, users.token_add, LOCAL),
            "token_revoke": Endpoint(of.RevokeTokenRequest, users.token_revoke, LOCAL),
            "link_add": Endpoint(of.AddLinkRequest, users.link_add, LOCAL),
            "link_use": Endpoint(of.UseLinkRequest, users.link_use, LOCAL),
            "submit": Endpoint(of.SubmitRequest, queue.submit, LOCAL),
            "submit_many": Endpoint(of.SubmitManyRequest, queue.submit_many, LOCAL),
            "cancel": Endpoint(of.CancelJobRequest, queue.cancel, LOCAL),
            "cancel_many": Endpoint(of.CancelManyRequest, queue.cancel_many, LOCAL),
            "queue": Endpoint(WeaverRequest, queue.queue),
            "cluster": Endpoint(WeaverRequest, queue.cluster),
            "quota": Endpoint(of.SetQuotaRequest, queue.quota, LOCAL),
            "quotas": Endpoint(WeaverRequest, queue.quotas),
        }

    @property
    def on_the_bus(self) -> tuple[str, ...]:
        """The requests that the bus may carry: none of them starts a process or admits a user."""
        return tuple(name for name, one in self._endpoints.items() if not one.is_local)

    async def answer(self, asked: Any) -> dict[str, Any]:
        """Return a reply or a refusal; a lost database ends the weaver, without a reply."""
        name = ""
        try:
            facts = checked(asked)
            name = str(facts.get("ask"))
            if name not in self._endpoints:
                raise NotFound("question", name, self._endpoints)
            endpoint = self._endpoints[name]
            return {"ok": await endpoint.handler(endpoint.request.read(facts))}
        except StateLost as error:
            self._weaver.tasks.fail(error)
            raise
        except LoomError as error:
            return refusal(error)
        except Exception as error:  # a bug of ours must not leave a caller without an answer
            _log.exception("%s could not be answered", name)  # never the facts: some are secret
            return {"error": f"the weaver failed: {error!r}", "code": "internal", "exit_code": 1}


def checked(asked: Any) -> Mapping[str, Any]:
    """Return the facts of a request in the version that this weaver understands."""
    if not isinstance(asked, dict) or asked.get("version") != VERSION:
        raise BadRequest(f"this weaver takes requests of version {VERSION}; upgrade torchloom")
    return asked


_LONGEST = 1 << 22  # bytes of a request
_AT_ONCE = 1000  # events that are read for a watcher at a time


class BusDoor:
    """Answers requests on the bus; each is a task of its own."""

    def __init__(self, router: Router, bus: Bus) -> None:
        self._router = router
        self._bus = bus
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe to the requests that the bus may carry."""
        for name in self._router.on_the_bus:
            self._subscriptions.append(
                await self._bus.subscribe(subjects.door(name), self._received)
            )

    async def close(self) -> None:
        """Unsubscribe, and drop requests without a reply."""
        for subscription in self._subscriptions:
            await subscription.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _received(self, subject: str, data: bytes, reply: str) -> None:
        if reply:
            task = asyncio.create_task(self._answer(subject.rpartition(".")[2], data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, data: bytes, reply: str) -> None:
        with contextlib.suppress(BusLost, StateLost):
            answer = await self._router.answer(_request(name, data))
            try:
                await self._bus.publish(reply, json.dumps(answer).encode())
            except TooLong:
                words = "the reply is too long for the bus; request less with `limit`"
                shorter = {"error": words, "code": "too_long", "exit_code": 1}
                await self._bus.publish(reply, json.dumps(shorter).encode())


def _request(name: str, data: bytes) -> Any:
    """Return the request of a subject and its data; empty data are no fields."""
    try:
        facts = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    return {"version": VERSION, **facts, "ask": name} if isinstance(facts, dict) else None


class Door:
    """Answers requests of this user on a unix socket, and streams events."""

    def __init__(self, router: Router, journal: Journal, path: Path) -> None:
        self._router = router
        self._journal = journal
        self._path = path
        self._own = 0
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections; the socket of a dead weaver is replaced."""
        listener = sockets.listen(self._path)
        self._own = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._called, sock=listener)

    async def close(self) -> None:
        """Close all connections; the socket of a later weaver is left alone."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._own:
                self._path.unlink()
        if self._server is not None:
            self._server.close()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            if same_user(writer.get_extra_info("socket")):
                while (asked := await _receive(reader)) is not None:
                    await self._serve(asked, reader, writer)
        except (ConnectionError, BadRequest, StateLost):
            pass  # the client has disconnected, or sends no JSON; or the weaver ends
        except asyncio.CancelledError:
            pass  # the door closes
        finally:
            writer.close()

    async def _serve(
        self, asked: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not isinstance(asked, dict) or asked.get("ask") != "watch":
            await _send(writer, await self._router.answer(asked))
            return
        try:
            request = EventsRequest.read(checked(asked))
            job = self._router.queries.job_of(request)
        except LoomError as error:
            await _send(writer, refusal(error))
            return
        await self._watch(job, request, reader, writer)

    async def _watch(
        self,
        job: str | None,
        asked: EventsRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send events from now, or from a cursor, until the client disconnects."""
        queries, watch = self._router.queries, self._journal.watch()
        after = asked.after or queries.news(None, {}, 1)["next"]
        closed = asyncio.ensure_future(reader.read(1))
        try:
            while not closed.done():
                found = await queries.aside(job, after, _AT_ONCE)
                for item in found["items"]:
                    after = _moved(after, item)
                    await _send(writer, {"event": item, "next": after})
                if not found["items"]:
                    await _either(watch.news(), closed)
            raise ConnectionError("the watcher disconnected")
        finally:
            watch.close()
            closed.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await closed


def _moved(after: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursor after an item."""
    is_ours = item["from"] == "weaver"
    return {**after, "weaver" if is_ours else "ranks": item["seq" if is_ours else "id"]}


async def _either(news: Any, closed: asyncio.Future[bytes]) -> None:
    waiting = asyncio.ensure_future(news)
    try:
        await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _receive(reader: asyncio.StreamReader) -> Any:
    try:
        length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > _LONGEST:
            raise BadRequest("too long")
        return json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadRequest("this is not JSON") from error


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    text = json.dumps(message).encode()
    writer.write(HEADER.pack(len(text), 0) + text)
    await writer.drain()
