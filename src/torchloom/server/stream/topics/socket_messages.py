"""The messages of a page on its WebSocket, validated on receipt, and the writer of the answers."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from torchloom.errors import LoomError, UserError
from torchloom.server.problems import explained
from torchloom.server.stream.frames import text_frame
from torchloom.server.stream.payloads import StreamPayload
from torchloom.server.stream.senders import ClientSender, EncodedMessage, Packet

OF_A_JOB = ("job", "series", "heat", "timeline", "commands", "logs", "checks")


class PageWriter:
    """Sends to one page. `send` never waits; a caller with much to send awaits `sender.drained`."""

    def __init__(self, sender: ClientSender) -> None:
        self.sender = sender

    @property
    def is_open(self) -> bool:
        return self.sender.is_open

    def send(self, body: Mapping[str, Any]) -> None:
        """Send one message; what JSON has no number for (NaN, infinity) is null."""
        draft = StreamPayload("", "topic", -1, time.time(), body, {})
        self.sender.send(Packet([EncodedMessage(draft, text_frame(msgspec.json.encode(body)))]))

    def whole(self, name: str, cursor: str, data: Any) -> None:
        """Send the whole value of a topic."""
        self.send({"id": name, "kind": "snapshot", "cursor": cursor, "data": data})

    def more(self, name: str, cursor: str, data: Any) -> None:
        """Send the new data of a topic."""
        self.send({"id": name, "kind": "delta", "cursor": cursor, "data": data})

    def refuse(self, name: str, error: LoomError) -> None:
        """Send why a subscription is refused, or has ended."""
        problem = json.loads(bytes(explained(error).body))
        self.send({"id": name, "kind": "error", "problem": problem})


_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
_Rank = Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]
_Step = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class Sub(msgspec.Struct, frozen=True, tag_field="op", tag="sub", forbid_unknown_fields=True):
    """Subscribe to a topic; its messages have this id."""

    id: _Id
    topic: Literal[
        "jobs", "job", "series", "heat", "timeline", "commands", "logs", "checks", "cluster"
    ]
    job: Annotated[str, msgspec.Meta(max_length=300)] = ""
    names: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=64)] | None = None
    ranks: Annotated[tuple[_Rank, ...], msgspec.Meta(max_length=1024)] | None = None
    buckets: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 600
    first: _Step | None = None
    last: _Step | None = None
    replaced: bool = False  # of curves: also what later generations have replaced
    span: Annotated[int, msgspec.Meta(ge=60, le=7 * 86_400)] = 600
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 500
    level: Literal["", "debug", "info", "warning", "error", "critical"] = ""
    regex: str = ""
    after: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class Unsub(msgspec.Struct, frozen=True, tag_field="op", tag="unsub", forbid_unknown_fields=True):
    """End a subscription."""

    id: _Id


Asked = Sub | Unsub
_DECODER: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)


class BadSub(UserError):
    """A subscription that cannot be served."""

    code = "bad_value"

    def __init__(self, field: str, why: str, remedy: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.remedy = remedy


class NotUnderstood(UserError):
    """A message that is not part of the protocol."""

    code = "bad_message"


def read(text: str | bytes) -> Asked:
    """Decode a message of a page."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotUnderstood(f"this is not understood: {error}") from error


def check(sub: Sub) -> None:
    """Refuse a subscription whose fields contradict each other."""
    if sub.topic in OF_A_JOB and not sub.job:
        raise BadSub("job", f"{sub.topic} belongs to a job", "name the job by its id")
    if sub.first is not None and sub.last is not None and sub.first > sub.last:
        raise BadSub(
            "last", "the range of steps ends before it begins", "write the smaller step first"
        )
