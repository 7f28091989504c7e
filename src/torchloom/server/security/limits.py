"""Which connections a server keeps, and for how long: limits for clients that are not known yet.

A connection that waits (for a handshake, the head or body of a request, or between two requests)
costs a descriptor and gives nothing. Each address may have some of them: of more, the one that
has waited longest is dropped. Requests under way and WebSockets are never dropped for others.
"""

import asyncio
import ipaddress
import logging
import resource
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.server.problems import BODY, ApiProblem, problem_response

MOST = 1 << 20  # bytes of a request
_OPEN_FILES = 8192  # descriptors that a server asks for
_OTHER_FILES = 256  # descriptors for databases, logs and the weaver
_REPORT_INTERVAL = 10.0  # seconds between two lines of the log about what was refused
_SWEPT = 128  # connections that are checked in one turn of the event loop
_log = logging.getLogger(__name__)


class BodyLimit:
    """Refuse bodies that are too large: by what they announce, or as they come."""

    def __init__(self, app: ASGIApp, most: int = MOST) -> None:
        self.app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _announced(scope) > self._most:
            error = self._refusal()
            response = problem_response(413, error.code, error.detail, error.field, error.remedy)
            await response(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise self._refusal()
            return message

        await self.app(scope, counted, send)

    def _refusal(self) -> ApiProblem:
        detail = f"a request has at most {self._most} bytes"
        return ApiProblem(413, "too_large", detail, BODY, "send less: specs are a few kilobytes")


def _announced(scope: Scope) -> int:
    """Return the content length that the client announced."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may send, and how long it may take, before anything is known of it."""

    url: int = 66_000  # bytes; the cursor of many ranks' logs has 64,000 letters
    head: int = 96 << 10  # bytes of a request line and its headers
    headers: int = 100  # of one request, its trailers included
    body: int = 16 << 20  # bytes that are read of one body, whether they are used or not
    framing: int = 64 << 10  # bytes of a body that are no content: sizes and names of chunks
    pipelined: int = 16  # requests that wait behind one that is under way
    begun: int = 16  # requests that begin in one turn of the event loop
    accepted: int = 16  # connections that are accepted in one turn of the event loop
    turn_seconds: float = 0.005  # of one turn, for handshakes and for reading requests
    handshake_seconds: float = 5.0
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 15.0  # between two requests
    stall_seconds: float = 30.0  # in which a client must take some of its response
    close_seconds: float = 5.0  # in which a client must take what was sent before a close
    waiting: int = 256  # connections of one address that wait
    waiting_in_all: int = 512  # connections of all addresses that wait
    of_peer: int = 3072  # connections of one address
    total: int = 4096


def fit_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise this process' limit of open files as far as it can be; return what fits in it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = limits.total if soft == resource.RLIM_INFINITY else max(soft - _OTHER_FILES, soft // 2)
    total = min(limits.total, room)
    return replace(
        limits,
        total=total,
        of_peer=min(limits.of_peer, total * 3 // 4),
        waiting=min(limits.waiting, total // 4),
        waiting_in_all=min(limits.waiting_in_all, total // 2),
    )


class Visit:
    """One connection: where it comes from, and until when it must do what it is waited for."""

    def __init__(
        self, table: "Connections", transport: asyncio.Transport, late: Callable[[], None]
    ) -> None:
        """`late` is called when the time is over; what it does must end the connection."""
        self.peer = peer_of(transport)
        self.transport = transport
        self.late = late
        self.deadline: float | None = None
        self.closing: float | None = None  # since when it is being closed
        self.stalled: tuple[float, int] | None = None  # since when so many bytes are not taken
        self._table = table

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the client, so many seconds at most; without a number until it is evicted."""
        self._table.wait(self, seconds)

    def serve(self) -> None:
        """Wait for the client no more: it has a request under way, or a WebSocket."""
        self._table.serve(self)

    def pass_on(self, transport: asyncio.Transport, late: Callable[[], None]) -> None:
        """Hand the connection to another protocol."""
        self.transport, self.late = transport, late

    def stall(self) -> None:
        """Note that the client does not take what it is sent."""
        self.stalled = (self._table.clock(), self.transport.get_write_buffer_size())

    def leave(self) -> None:
        """Forget the connection, which has ended, and free its protocol without a collection."""
        self._table.leave(self)
        self.late = _do_nothing

    def refuse(self, reason: str) -> None:
        """Count a refusal for the log."""
        self._table.refused[reason] += 1


class Connections:
    """The table of connections of one server."""

    def __init__(
        self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.budget = TurnBudget(limits.turn_seconds)
        self.refused: Counter[str] = Counter()
        self._waiting_count = 0
        self._visits: dict[Visit, None] = {}
        self._of_peer: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Visit, None]] = {}
        self._reported = clock()

    def __len__(self) -> int:
        return len(self._visits)

    def waiting_of(self, peer: str) -> int:
        """Return how many connections of an address wait."""
        return len(self._waiting.get(peer, ()))

    def arrive(self, visit: Visit, seconds: float) -> bool:
        """Add a connection that waits for its client; false when there is no room for it."""
        limits, peer = self.limits, visit.peer
        if self.waiting_of(peer) >= limits.waiting or self._of_peer[peer] >= limits.of_peer:
            self._evict(peer)
        elif len(self._visits) >= limits.total:
            self._evict(max(self._waiting, key=self.waiting_of, default=peer))
        if len(self._visits) >= limits.total or self._of_peer[peer] >= limits.of_peer:
            self.refused["no room"] += 1
            return False
        self._visits[visit] = None
        self._of_peer[peer] += 1
        self.wait(visit, seconds)
        return True

    def wait(self, visit: Visit, seconds: float | None) -> None:
        """Wait for a client from now on; it is the last of its address to be evicted."""
        if visit not in self._visits:
            return
        waiting = self._waiting.setdefault(visit.peer, OrderedDict())
        self._waiting_count += visit not in waiting
        waiting[visit] = None
        waiting.move_to_end(visit)
        visit.deadline = None if seconds is None else self.clock() + seconds
        if self._waiting_count > self.limits.waiting_in_all:
            self._evict(max(self._waiting, key=self.waiting_of))

    def serve(self, visit: Visit) -> None:
        """Wait for a client no more."""
        visit.deadline = None
        waiting = self._waiting.get(visit.peer)
        if waiting is not None and visit in waiting:
            del waiting[visit]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[visit.peer]

    def leave(self, visit: Visit) -> None:
        """Remove a connection."""
        self.serve(visit)
        if visit in self._visits:
            del self._visits[visit]
            self._of_peer[visit.peer] -= 1
            if not self._of_peer[visit.peer]:
                del self._of_peer[visit.peer]

    async def sweep(self) -> None:
        """End what took too long, some in each turn of the event loop. The server repeats it."""
        now = self.clock()
        for number, visit in enumerate(list(self._visits), 1):
            if visit in self._visits:
                self._check(visit, now)
            if number % _SWEPT == 0:
                await asyncio.sleep(0)
        if self.refused and now - self._reported >= _REPORT_INTERVAL:
            self._reported = now
            counts = ", ".join(f"{reason}: {n}" for reason, n in sorted(self.refused.items()))
            _log.warning("connections were refused or ended early (%s)", counts)
            self.refused.clear()

    def drain(self) -> None:
        """End every connection that only waits: the server leaves."""
        for waiting in list(self._waiting.values()):
            for visit in list(waiting):
                self._abort(visit, "server left")

    def _check(self, visit: Visit, now: float) -> None:
        if visit.transport.is_closing():
            self._close(visit, now)
        elif visit.deadline is not None and now >= visit.deadline:
            visit.deadline = None
            visit.late()
        elif visit.stalled is not None:
            self._check_stall(visit, now)

    def _close(self, visit: Visit, now: float) -> None:
        """Give a client some seconds to take what it was sent, then end the connection."""
        if visit.closing is None:
            visit.closing = now
        elif now - visit.closing >= self.limits.close_seconds:
            self._abort(visit, "unread at close")

    def _check_stall(self, visit: Visit, now: float) -> None:
        assert visit.stalled is not None
        since, unread = visit.stalled
        left = visit.transport.get_write_buffer_size()
        if left < unread:
            visit.stalled = (now, left)
        elif now - since >= self.limits.stall_seconds:
            self._abort(visit, "response unread")

    def _evict(self, peer: str) -> None:
        """End the connection of an address that has waited longest."""
        if waiting := self._waiting.get(peer):
            self._abort(next(iter(waiting)), "evicted")

    def _abort(self, visit: Visit, reason: str) -> None:
        self.refused[reason] += 1
        self.leave(visit)
        visit.transport.abort()


class TurnBudget:
    """Bound the time that clients which are not known yet take of one turn of the event loop.

    A TLS handshake takes a signature, a request takes a parser, and thousands of clients may ask
    for both at the same moment. What exceeds the time waits for a later turn. Addresses take turns,
    so one client of one address waits for one piece of work of each other address.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spent = 0.0  # in this turn
        self._queues: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._is_due = False  # the next turn will be noted

    def run(self, peer: str, work: Callable[[], None]) -> bool:
        """Do some work for an address, now or in a later turn; return whether it is done."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._queues or self._spent >= self._seconds:
            self._queues.setdefault(peer, deque()).append(work)
            return False
        self._do(work)
        return True

    def _do(self, work: Callable[[], None]) -> None:
        began = self._clock()
        try:
            work()
        finally:
            self._spent += self._clock() - began

    def _turn(self) -> None:
        self._spent = 0.0
        self._is_due = bool(self._queues)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._turn)
        while self._queues and self._spent < self._seconds:
            peer, queue = self._queues.popitem(last=False)
            work = queue.popleft()
            if queue:
                self._queues[peer] = queue
            self._do(work)


class PacedRequests:
    """Spread requests over turns of the event loop: in each turn only some of them begin.

    One address may complete hundreds of requests at the same moment. Each is answered in little
    time; all of them in one turn would keep every other client waiting.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False  # the next turn will be noted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._begin()
        await self._app(scope, receive, send)

    async def _begin(self) -> None:
        """Return in a turn in which few others have begun, in the order of the calls."""
        self._note_next_turn()
        if self._begun < self._most and not self._waiting:
            self._begun += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _note_next_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due, self._begun = False, 0
        while self._waiting and self._begun < self._most:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            self._note_next_turn()


def peer_of(transport: asyncio.Transport) -> str:
    """Return the address that a connection is counted by: of IPv6 the network of 64 bits."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    return counted_address(str(name[0]))


def _do_nothing() -> None:
    """Stand in for the reaction of a connection that has ended."""


def counted_address(host: str) -> str:
    """Return an address as failures and connections are counted by it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
