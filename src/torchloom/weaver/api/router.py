"""Every request that a weaver answers: its name, its fields, its handler, and at which door."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torchloom.errors import LoomError, NotFound
from torchloom.weaver.api import request as of
from torchloom.weaver.api.checkpoints import CheckpointApi, RetentionApi
from torchloom.weaver.api.commands import CommandApi
from torchloom.weaver.api.queries import QueryApi, RunApi, StackApi
from torchloom.weaver.api.queue import QueueApi
from torchloom.weaver.api.refusals import refusal
from torchloom.weaver.api.request import BadRequest, WeaverRequest
from torchloom.weaver.api.resumption import PERIOD, ResizeApi, ResumeApi
from torchloom.weaver.api.users import UserApi
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
        raise BadRequest(f"this weaver is asked in version {VERSION}; upgrade torchloom")
    return asked
