"""The connections to the job agents: which have joined, which are lost, what each is sent."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.launch import wire
from torchloom.launch.hosts.carriers import Carriers
from torchloom.launch.hosts.host_lists import index_of
from torchloom.launch.protocol import (
    TO_SUPERVISOR,
    AgentHello,
    AgentProof,
    AppIdReply,
    AppIdRequest,
    LaunchMessage,
    PlaneRequest,
    ProofRequest,
    decoding,
)
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.wire import Connection, nonce
from torchloom.unix import LONGEST, same_user

REJOIN_LIMIT = 3.0  # seconds in which an agent that is gone must be back
_MOST_EARLY = 200  # messages of a caller that has not shown who it is
_EARLY_BYTES = 1 << 20  # of all of them together
_MOST_STRANGERS = 256  # such callers at a time
_STRANGE_LIMIT = 30.0  # seconds in which a caller shows who it is


@dataclass(slots=True)
class Stranger:
    """A caller that has not joined: what it was asked to prove, its hello, what it sent besides."""

    challenge: str
    since: float
    hello: AgentHello | None = None
    early: list[LaunchMessage] = field(default_factory=list)
    asks: bool = False
    plane: PlaneRequest | None = None  # it is a node agent, and asks for the plane


class Nodes:
    """The agents of a job, each by the name of its node.

    Connections are taken at every listener. A caller on this host must be the same user, one from
    another must know the token.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        names: Sequence[str],
        token: str,
        app_id: str,
        on_joined: Callable[[str, AgentHello], None],
        on_message: Callable[[str, LaunchMessage], None],
        on_lost: Callable[[str, str], None],
        on_relay: Callable[[Connection, PlaneRequest], None] = lambda connection, _: (
            connection.close()
        ),
    ) -> None:
        self.names = tuple(names)
        self._selector = selector
        self._token = token
        self._app_id = app_id
        self._on_joined = on_joined
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_relay = on_relay
        self._joined: dict[str, Connection] = {}
        self._strangers: dict[Connection, Stranger] = {}
        self._addresses: dict[str, str] = {}
        self._seats: dict[str, int] = {}
        self._gone_at: dict[str, float] = {}
        self._waiting: dict[str, list[LaunchMessage]] = {}  # for agents that are not there
        self.lost: set[str] = set()
        self._done: set[str] = set()

    def take_calls(self, listener: socket.socket) -> None:
        """Accept agents at a socket."""
        self._selector.register(
            listener, selectors.EVENT_READ, lambda _ready: self._on_caller(listener)
        )

    def have_joined(self, names: Sequence[str]) -> bool:
        return all(name in self._joined for name in names)

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.lost | self._done)

    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.present if name not in self._joined)

    def lies_at(self, name: str, address: str) -> None:
        """Note where other hosts reach a node that called from this one."""
        self._addresses[name] = address

    def address(self, name: str) -> str:
        """Return where other hosts reach a node."""
        return self._addresses.get(name, name)

    def send(self, name: str, message: LaunchMessage) -> None:
        """Send an agent a message, now or when it is back."""
        if name in self._joined:
            self._joined[name].send(message)
        elif name not in self.lost:
            self._waiting.setdefault(name, []).append(message)

    def tell(self, name: str, message: LaunchMessage) -> None:
        """Send an agent a message now; when it is away, its next joining repeats what matters."""
        if name in self._joined:
            self._joined[name].send(message)

    def tell_all(self, message: LaunchMessage) -> None:
        for name in self.present:
            self.send(name, message)

    def expire(self) -> None:
        """Give up the nodes whose agents were gone for too long."""
        now = time.monotonic()
        for name in [name for name, when in self._gone_at.items() if when + REJOIN_LIMIT <= now]:
            self.give_up(name, f"its agent is gone and was not back in {REJOIN_LIMIT:g} s")
        for connection, stranger in list(self._strangers.items()):
            if stranger.challenge and stranger.since + _STRANGE_LIMIT <= now:
                self._dismiss(connection)

    def patience(self) -> float | None:
        """Return how long nothing can expire."""
        now = time.monotonic()
        ends = [when + REJOIN_LIMIT for when in self._gone_at.values()]
        unproven = (one for one in self._strangers.values() if one.challenge)
        ends += [one.since + _STRANGE_LIMIT for one in unproven]
        return max(0.0, min(ends) - now) if ends else None

    def give_up(self, name: str, evidence: str) -> None:
        """Treat a node as lost: close its connection and report it."""
        if name in self.lost:
            return
        self.lost.add(name)
        self._gone_at.pop(name, None)
        self._waiting.pop(name, None)
        if connection := self._joined.pop(name, None):
            connection.close()
        self._on_lost(name, evidence)

    def release(self, name: str) -> None:
        """A node has nothing more to do, and may leave."""
        self._done.add(name)
        self._gone_at.pop(name, None)

    def close(self) -> None:
        for connection in (*self._joined.values(), *self._strangers):
            connection.close()

    # Callers.

    def _on_caller(self, listener: socket.socket) -> None:
        try:
            channel, _ = listener.accept()
        except OSError:
            return
        is_local = channel.family == socket.AF_UNIX
        if (is_local and not same_user(channel)) or len(self._strangers) >= _MOST_STRANGERS:
            channel.close()
            return
        if not is_local:
            wire.watch(channel)
        self._receive(channel, "" if is_local else wire.nonce())

    def _receive(self, channel: socket.socket, challenge: str) -> None:
        box: list[Connection] = []
        connection = Connection(
            channel,
            self._selector,
            decoding(TO_SUPERVISOR, lambda message, _fds: self._handle(box[0], message)),
            lambda: self._left(box[0]),
        )
        box.append(connection)
        self._strangers[connection] = Stranger(challenge, time.monotonic())
        if challenge:
            connection.longest = _EARLY_BYTES
            connection.send(ProofRequest(challenge))

    def _handle(self, connection: Connection, message: LaunchMessage) -> None:
        stranger = self._strangers.get(connection)
        if stranger is None:
            name = self._name_of(connection)
            if name is not None:
                self._on_message(name, message)
        elif (stranger.challenge and connection.taken > _EARLY_BYTES) or not self._is_welcome(
            connection, stranger, message
        ):
            self._dismiss(connection)
        elif not stranger.challenge:
            self._admit(connection, stranger)

    def _is_welcome(
        self, connection: Connection, stranger: Stranger, message: LaunchMessage
    ) -> bool:
        """Store what a caller sends before it has joined; false if it must not send that."""
        match message:
            case AgentHello():
                stranger.hello = message
            case AgentProof():
                if not wire.is_proof(message.proof, self._token, "agent", stranger.challenge):
                    return False
                stranger.challenge, connection.longest = "", LONGEST
            case AppIdRequest():
                stranger.asks = True
            case PlaneRequest():
                stranger.plane = message
            case _:  # what happens on a node waits for no proof
                stranger.early.append(message)
        return len(stranger.early) <= _MOST_EARLY

    def _admit(self, connection: Connection, stranger: Stranger) -> None:
        """Answer a caller that needs to prove nothing more."""
        if stranger.asks:
            connection.send(AppIdReply(self._app_id))
        if stranger.plane is not None:
            del self._strangers[connection]
            self._on_relay(connection, stranger.plane)
        elif stranger.hello is not None:
            self._join(connection, stranger.hello, stranger.early)

    def _join(
        self, connection: Connection, hello: AgentHello, early: Sequence[LaunchMessage]
    ) -> None:
        is_local = connection.channel.family == socket.AF_UNIX
        index = 0 if is_local else self._index(hello)
        if index is None or self.names[index] in self.lost:
            self._dismiss(connection)
            return
        name = self.names[index]
        del self._strangers[connection]
        if before := self._joined.get(name):
            before.close()
        self._joined[name] = connection
        self._gone_at.pop(name, None)
        if not is_local:
            self._addresses[name] = connection.channel.getpeername()[0]
        self._on_joined(name, hello)
        for message in self._waiting.pop(name, []):
            connection.send(message)
        for message in early:
            self._on_message(name, message)

    def _index(self, hello: AgentHello) -> int | None:
        """Return which node calls: one that was here before, that has this name, or a new one."""
        seat, place = hello.registration, hello.place
        if seat and seat in self._seats:
            return self._seats[seat]
        index = index_of(hello.host, self.names)
        if seat:
            taken = set(self._seats.values()) | {0}
            free = [i for i in range(len(self.names)) if i not in taken]
            index = place if place in free else next(iter(free), None)
            if index is not None:
                self._seats[seat] = index
        return index

    def _left(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        name = self._name_of(connection)
        if name is not None:
            del self._joined[name]
            if name not in self._done:
                self._gone_at[name] = time.monotonic()

    def _dismiss(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        connection.close()

    def _name_of(self, connection: Connection) -> str | None:
        return next((name for name, each in self._joined.items() if each is connection), None)


class NodeGathering:
    """The nodes of a run before it begins; `meeting` is where launches that met call in."""

    def __init__(
        self,
        request: LaunchRequest,
        nodes: Nodes,
        carriers: Carriers,
        meeting: socket.socket | None,
    ) -> None:
        self._request = request
        self._nodes = nodes
        self._carriers = carriers
        self._meeting = meeting
        self._marker: Path | None = None

    @property
    def has_met(self) -> bool:
        """Tell whether each node was launched by itself."""
        return self._meeting is not None

    @property
    def marker(self) -> str:
        """A file in the log folder: a node that does not see it sends its logs here."""
        return str(self._marker) if self._marker else ""

    def call(self) -> None:
        """Have agents brought to all nodes, and let them in."""
        for path, text in self._request.files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        if self._meeting is not None:
            self._mark_logs()
            self._nodes.take_calls(self._meeting)
            self._nodes.lies_at(self._nodes.names[0], self._meeting.getsockname()[0])
        elif self._request.carrier:
            self._mark_logs()
            self._nodes.take_calls(self._carriers.start())

    def wait(self, is_done: Callable[[], bool], turn: Callable[[float], None]) -> None:
        """Run the loop until `is_done`; nodes that have not joined in time are lost."""
        began = time.monotonic()
        while not is_done():
            left = began + self._limit() - time.monotonic()
            if left > 0:
                turn(left)
                continue
            for name in self._nodes.missing():
                why = self._carriers.last_words(name) or "nothing was received from it"
                self._nodes.give_up(name, f"no agent in {time.monotonic() - began:.0f} s: {why}")

    def close(self) -> None:
        """Leave no mark."""
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)

    def _limit(self) -> float:
        """Return how long nodes may take to come; less once there are as many as must be."""
        least = min(role.min_group or len(role.replicas) for role in self._request.roles)
        there = len(self._nodes.present) - len(self._nodes.missing())
        enough = self._request.last_call and there >= least
        return self._request.last_call if enough else self._request.join_limit

    def _mark_logs(self) -> None:
        folder = Path(self._request.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._marker = folder / f".seen-by-{nonce()}"
        self._marker.touch()
