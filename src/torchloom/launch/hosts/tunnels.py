"""Connect the node agents of a job's other nodes to the plane of this host.

An agent that has shown that it knows the job's token is vouched for by the plane, which signs a
token for the key that the agent has made: nothing secret is sent. Where the plane's NATS listens on
this host alone, the agent's connection is then joined to it.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.host import sockets
from torchloom.launch.host.identity import ProcessIdentity, boot_id, host_name
from torchloom.launch.protocol import (
    LaunchMessage,
    PlaneAddress,
    PlanePassage,
    PlaneRefusal,
    PlaneRequest,
)
from torchloom.launch.wire import Connection, WireMessage
from torchloom.unix import same_user, send_message

if TYPE_CHECKING:
    pass

_CHUNK = 1 << 16
_MOST_UNSENT = 1 << 20  # bytes that wait for one side before the other is read no further
CONTROL = "plane.sock"  # among the plane's sockets: the process that keeps it alive
UNREACHED = 20.0  # seconds without a plane after which that is worth a word
_VERSION = 1  # of what the plane is asked
_MOMENT = 1.0  # seconds for what a host's own kernel answers


@dataclass(slots=True)
class _End:
    channel: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    watched: int = 0  # what the selector looks for


class Splice:
    """Carries bytes both ways until one side hangs up; `on_end` is called once, by that."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        one: socket.socket,
        other: socket.socket,
        on_end: Callable[["Splice"], None],
    ) -> None:
        self._selector = selector
        self._ends = (_End(one), _End(other))
        self._on_end = on_end
        self._open = True
        for end in self._ends:
            end.channel.setblocking(False)
        self._settle()

    def close(self) -> None:
        """Hang up on both."""
        if self._open:
            self._open = False
            for end in self._ends:
                if end.watched:
                    self._selector.unregister(end.channel)
                end.channel.close()

    def _serve(self, end: _End, ready: int) -> None:
        if not self._open:
            return  # the other end hung up in this very moment
        other = self._ends[self._ends[0] is end]
        try:
            if ready & selectors.EVENT_READ:
                self._pass_on(end, other)
            if ready & selectors.EVENT_WRITE:
                self._flush(end)
        except OSError:
            self._end()
        if self._open:
            self._settle()

    def _pass_on(self, end: _End, other: _End) -> None:
        try:
            data = end.channel.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        other.unsent += data
        self._flush(other)

    def _flush(self, end: _End) -> None:
        while end.unsent:
            try:
                sent = end.channel.send(end.unsent)
            except BlockingIOError:
                return
            del end.unsent[:sent]

    def _settle(self) -> None:
        """Look for what can be done: nothing is read for a side that does not take what it has."""
        for end, other in (self._ends, self._ends[::-1]):
            wanted = selectors.EVENT_READ if len(other.unsent) < _MOST_UNSENT else 0
            wanted |= selectors.EVENT_WRITE if end.unsent else 0
            if wanted == end.watched:
                continue
            if end.watched:
                self._selector.unregister(end.channel)
            if wanted:
                self._selector.register(
                    end.channel, wanted, lambda ready, end=end: self._serve(end, ready)
                )
            end.watched = wanted

    def _end(self) -> None:
        self.close()
        self._on_end(self)


class Tunnels:
    """The launch process' part: who is let through, and what goes through."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        app_id: str,
        token: str,
        on_unwatched: Callable[[str], None],
        unreached: float = UNREACHED,
    ) -> None:
        self._selector = selector
        self._app_id = app_id
        self._token = token
        self._on_unwatched = on_unwatched
        self._limit = unreached
        self._calls: list[Call] = []
        self._splices: list[Splice] = []
        self._unreached_since: float | None = None
        self._reported = False

    def uplink(self, agent: ProcessIdentity) -> str:
        """Return where ranks of a job agent's node find the plane's node agent.

        Nothing: the node gets one of its own.
        """
        is_here = (agent.host, agent.boot) == (host_name(), boot_id())
        if is_here or not settings.wants_plane():
            return str(settings.plane_dir() / sockets.UPLINK)
        return ""

    def take(self, connection: Connection, asked: PlaneRequest) -> None:
        """Deal with an agent that has shown who it is, and wants to the plane."""
        from torchloom.bus import subjects

        channel = connection.channel.dup()
        connection.close()
        name = subjects.agent_of_job(asked.node, self._app_id)
        proof = wire.proof(self._token, "launcher", asked.challenge)
        call = Call(self, self._selector, channel, proof)
        self._calls.append(call)
        call.ask({"agent": name, "key": asked.key})

    def close(self) -> None:
        """Hang up on all."""
        for call in self._calls:
            call.close()
        for splice in self._splices:
            splice.close()

    # What a call makes of its answer.

    def refused(self, call: "Call", why: str) -> None:
        self._calls.remove(call)
        now = time.monotonic()
        self._unreached_since = self._unreached_since or now
        if now - self._unreached_since >= self._limit and not self._reported:
            self._reported = True
            self._on_unwatched(why)

    def admitted(self, call: "Call", nats: socket.socket | None) -> None:
        self._calls.remove(call)
        self._unreached_since = None
        if nats is not None:
            splice = Splice(self._selector, call.channel, nats, self._splices.remove)
            self._splices.append(splice)


class Call:
    """One agent that waits for the plane to vouch for it."""

    def __init__(
        self,
        tunnels: Tunnels,
        selector: selectors.BaseSelector,
        channel: socket.socket,
        proof: str,
    ) -> None:
        self.channel = channel
        self._tunnels = tunnels
        self._selector = selector
        self._proof = proof
        self._plane: Connection | None = None
        self._is_watched = True
        channel.settimeout(_MOMENT)
        selector.register(channel, selectors.EVENT_READ, self._on_agent)

    def ask(self, facts: Mapping[str, Any]) -> None:
        """Ask the plane; what it answers is dealt with when it does."""
        try:
            plane = sockets.connect(settings.plane_dir() / CONTROL)
        except OSError:
            self._refuse(f"no plane runs on {host_name()}")
            return
        if not same_user(plane):
            plane.close()
            self._refuse("the plane here is another user's")
            return
        self._plane = Connection(plane, self._selector, self._handle, self._lost)
        self._plane.send({**facts, "ask": "admit", "version": _VERSION})

    def close(self) -> None:
        """Hang up on both."""
        self._release()
        self.channel.close()

    def _on_agent(self, _ready: int) -> None:
        """It has nothing to say before it is answered: it is gone."""
        if self._is_watched:  # and was not answered in this very moment
            self.close()
            self._tunnels.refused(self, f"the plane on {host_name()} does not answer")

    def _lost(self) -> None:
        self._refuse(f"the plane on {host_name()} closed the connection")

    def _handle(self, answer: WireMessage, _fds: list[int]) -> None:
        if "error" in answer:
            self._refuse(str(answer["error"]))
            return
        from urllib.parse import urlsplit

        given = answer["ok"]
        where = urlsplit(given["nats"])
        facts = (self._proof, given["token"])
        try:
            if where.hostname not in settings.LOOPBACK_NAMES:
                self._admit(PlaneAddress(*facts, given["nats"], given["authority"]), None)
            else:
                nats = socket.create_connection((where.hostname, where.port or 0), _MOMENT)
                self._admit(PlanePassage(*facts), nats)
        except OSError as error:
            self._refuse(f"the plane's NATS does not answer: {error}")

    def _admit(self, message: LaunchMessage, nats: socket.socket | None) -> None:
        try:
            send_message(self.channel, message.to_wire())
        except OSError:
            if nats is not None:
                nats.close()
            raise
        self._release()
        self._tunnels.admitted(self, nats)
        if nats is None:
            self.channel.close()

    def _refuse(self, why: str) -> None:
        with contextlib.suppress(OSError):  # it is gone
            send_message(self.channel, PlaneRefusal(self._proof, why).to_wire())
        self.close()
        self._tunnels.refused(self, why)

    def _release(self) -> None:
        if self._plane is not None:
            self._plane.close()
            self._plane = None
        if self._is_watched:
            self._is_watched = False
            self._selector.unregister(self.channel)
