"""The process of a plane: it starts the parts, keeps them running, answers requests, and ends.

Ranks are no children of it: whatever happens to a plane, they keep training.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchloom import accounts, settings
from torchloom.bus import subjects
from torchloom.client import plane as client
from torchloom.client import served
from torchloom.errors import Failure, LoomError, UserError, shorten
from torchloom.launch.host import sockets
from torchloom.launch.wire import BadFrame, Connection, WireMessage
from torchloom.plane import broker, discovery, parts
from torchloom.plane.credentials import WEAVER, Credentials, write_secret
from torchloom.plane.parts import (
    LOG_INTERVAL,
    MOST_ENDS,
    HttpServerPart,
    PartProcess,
    PartSupervisor,
    PlaneOptions,
    PlanePart,
    bound_log,
)
from torchloom.unix import same_user

IDLE_VARIABLE = "LOOM_PLANE_IDLE"  # seconds
_DEFAULT = 3600.0
_CHECKS = 10  # within the limit
_log = logging.getLogger(__name__)
_UP_LIMIT = 90.0  # seconds for a part to answer
_POLL = 0.02  # seconds between checks while parts come up
_FOLDER_INTERVAL = 2.0  # seconds between checks that the folder of the sockets is there
_VOUCHED = 86_400.0  # seconds for which the token of an agent is valid
_MOST_UNSENT = 1 << 16  # bytes of a request of an account's agent, and of replies it has not read
_OURS = ("plane.json", "nats.conf", "weaver.sock")  # made anew at every start


Answer = Callable[[WireMessage], None]
Serve = Callable[[WireMessage, Answer], None]


class ControlSocket:
    """Accepts connections at a path and passes each request on, with a function to reply."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, serve: Serve) -> None:
        self._path = path
        self._selector = selector
        self._serve = serve
        self._callers: list[Connection] = []
        self._listener: socket.socket | None = sockets.listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def stop_accepting(self) -> None:
        """Accept no new connections; those that are open are closed when the plane has ended."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Send what waits and close all connections."""
        self.stop_accepting()
        for caller in self._callers:
            caller.finish()

    def _accept(self, _: int) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):  # it closed at once
            channel, _address = self._listener.accept()
            if same_user(channel):
                self._callers = [caller for caller in self._callers if caller.is_open]
                self._callers.append(self._answered(channel))
            else:
                channel.close()

    def _answered(self, channel: socket.socket) -> Connection:
        def handle(message: WireMessage, fds: list[int]) -> None:
            for fd in fds:
                os.close(fd)
            try:
                self._serve(message, caller.send)
            except LoomError as error:
                caller.send(complaint(error))

        caller = Connection(channel, self._selector, handle, lambda: None)
        return caller


def complaint(error: LoomError) -> dict[str, object]:
    """Return an error as a reply."""
    return {"error": str(error), "code": error.code, "exit_code": error.exit_code}


@dataclass(slots=True)
class Idleness:
    """For how long there has been no job, by a clock that no one sets.

    Its owner reports now and then whether there is one.
    """

    limit: float
    clock: Callable[[], float] = time.monotonic
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    @property
    def interval(self) -> float:
        """Return the seconds between two checks."""
        return min(60.0, self.limit / _CHECKS)

    def over(self, busy: bool) -> bool:
        """Note whether there is a job now; return whether there was none for too long."""
        now = self.clock()
        if busy:
            self.since = now
        return now - self.since >= self.limit


def idle_limit(env: Mapping[str, str]) -> float:
    """Return after how many seconds without a job a plane ends."""
    try:
        return max(0.0, float(env[IDLE_VARIABLE]))
    except (KeyError, ValueError):
        return _DEFAULT


def has_live_job(ask: Callable[..., object]) -> bool:
    """Tell whether a job runs here: by the runs' own records, and by the weaver."""
    from torchloom.launch.records.catalog import records

    if any(not record.is_over() for record in records()):
        return True
    try:
        found = ask("jobs", timeout=2.0, active=True)
    except LoomError:  # no weaver answers: it is being restarted, or does not know this request
        return False
    return bool(found)


Report = Callable[[Mapping[str, Any]], None]


class NotUp(Failure):
    """A part of the plane does not come up."""

    code = "plane_not_up"

    def __init__(self, child: PartProcess) -> None:
        part = child.part
        words = part.last_log_line() or child.how or "it does not answer"
        super().__init__(f"the plane's {part.name} did not start: {words}; see {part.log}")


class Plane:
    """One plane: `run` returns when it is asked to end, has no job for long, or fails."""

    def __init__(
        self,
        options: PlaneOptions,
        keys: Credentials,
        env: Mapping[str, str],
        commands: Mapping[str, tuple[str, ...]] = parts.COMMANDS,
    ) -> None:
        self._options = options
        self._keys = keys
        self._env = env
        self._pinned = options.pinned
        self._served = options.pinned or options.served
        self._broker = broker.find(options, keys, env)
        self._folder = client.made_folder()
        self._parts = parts.PlaneParts(keys, self._folder, client.log().parent, env, commands)
        self._supervisor = PartSupervisor()
        self._http = HttpServerPart(client.card(), self._supervisor, self._server)
        self._selector = selectors.DefaultSelector()
        self._waiting: list[Answer] = []
        self._account_links: dict[str, Connection] = {}  # to the agents of accounts
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._begun = time.monotonic()
        self._idleness = Idleness(idle_limit(env))
        self._idle_check_due = self._begun + self._idleness.interval
        self._logs_due = self._begun
        self._ready = self._was_up = self._leaving = False
        self.is_homeless = False  # the folder of its sockets was removed: clients cannot reach it

    def run(self, report: Report) -> int:
        """Run the plane. `report` is called once: that it is up, or why it is not."""
        control = ControlSocket(client.control(), self._selector, self._serve)
        self._door = client.control().stat().st_ino
        self._waiting.append(report)
        problem: LoomError | None = None
        try:
            with _woken_by_signals(self._selector, self._on_signal):
                self._want(self._options)
                while not self._leaving:
                    self._turn()
        except LoomError as error:
            _log.error("the plane ends: %s", error)
            problem = error
        finally:
            control.stop_accepting()
            self._supervisor.end()
            for path in (*(self._folder / name for name in _OURS), client.card()):
                path.unlink(missing_ok=True)
            served.withdraw(socket.gethostname(), os.getpid())
            self._answer_all(complaint(problem or Failure("the plane was asked to end")))
            control.close()
        return problem.exit_code if problem else 0

    def status(self) -> dict[str, Any]:
        """Return the status of the plane."""
        return {
            "url": self._http.url() or f"unix://{client.door()}",
            "nats": self._broker.address.url,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "token_file": str(settings.loom_home() / "plane" / "admin.token"),
            "home": str(settings.loom_home()),
            "pinned": self._pinned,
            "note": "; ".join(filter(None, (self._broker.note, self._http.problem()))),
            "parts": {name: _shown(one) for name, one in self._supervisor.children.items()},
        }

    def _want(self, options: PlaneOptions) -> None:
        """Start what is wanted and not there; NATS first, which the others need."""
        children = self._supervisor.children
        wanted = [name for name in options.names if name != parts.SERVER]
        missing = [name for name in wanted if name not in children]
        if parts.NATS in missing and self._broker.embedded:
            self._start_nats()
        for name in missing:
            if name != parts.NATS:
                made = self._parts.part(name, self._broker.address, self._broker.authority)
                self._supervisor.start(made)
        if parts.SERVER in options.names:
            self._http.want(at_once=self._served)
        if missing or (self._served and not self._http.is_settled()):
            self._ready, self._begun = False, time.monotonic()
        if missing:
            lasting = {name: value for name, value in self.status().items() if name != "parts"}
            write_secret(self._folder / "plane.json", _json(lasting))

    def _server(self) -> PlanePart:
        return self._parts.server(self._options.address, self._broker.certificate)

    def _start_nats(self) -> None:
        part = self._parts.nats(self._broker.address, self._broker.certificate)
        child = self._supervisor.start(part)
        begun = time.monotonic()
        while not discovery.answers(self._broker.address, self._keys, self._broker.authority):
            self._supervisor.check()
            if child.ends >= MOST_ENDS or time.monotonic() - begun > _UP_LIMIT:
                raise NotUp(child)
            time.sleep(_POLL / 4)

    def _turn(self) -> None:
        """Wait for the next event, and handle it."""
        if time.monotonic() >= self._logs_due:
            self._bound_logs()
        waits = [due - time.monotonic() for due in (self._idle_check_due, self._logs_due)]
        waits.append(_FOLDER_INTERVAL)
        checks = (self._supervisor.check(), self._http.check() if self._was_up else None)
        waits += [again for again in checks if again is not None]
        if not self._ready:
            self._check_up()
            waits.append(_POLL)
        for key, events in self._selector.select(max(0.0, min(waits))):
            key.data(events)
        self._check_folder()
        if time.monotonic() >= self._idle_check_due and not self._leaving:
            self._check_idle()

    def _check_folder(self) -> None:
        """End when the folder of the sockets was removed, as an ended login's or job's is.

        The process starts itself anew: clients could not reach it, and no other plane may start.
        """
        try:
            is_there = client.control().stat().st_ino == self._door
        except OSError:
            is_there = False
        if not is_there and not self._leaving:
            _log.warning("%s was removed; the plane starts again", self._folder)
            self.is_homeless = self._leaving = True

    def _check_up(self) -> None:
        child = self._supervisor.children.get(WEAVER)
        if child is None or (child.pid is not None and _answers()):
            self._was_up = True
            if not self._served or self._http.is_settled():
                self._ready = True
                self._announce()
                self._answer_all({"ok": "up"})
        elif child.ends >= MOST_ENDS or time.monotonic() - self._begun > _UP_LIMIT:
            if not self._was_up:
                raise NotUp(child)
            self._ready = True  # as ready as before the last request
            self._answer_all(complaint(NotUp(child)))

    def _announce(self) -> None:
        """Publish how hosts that share this state folder reach this plane."""
        if self._broker.certificate is None:
            return
        facts = {name: self.status()[name] for name in ("nats", "url", "host", "pid")}
        with contextlib.suppress(OSError):  # they start their own
            served.announce({**facts, "authority": str(self._broker.authority)})

    def _bound_logs(self) -> None:
        self._supervisor.bound_logs()
        bound_log(client.log())
        self._logs_due = time.monotonic() + LOG_INTERVAL

    def _check_idle(self) -> None:
        self._idle_check_due = time.monotonic() + self._idleness.interval
        for path in (self._folder, *self._folder.iterdir()):
            with contextlib.suppress(OSError):
                os.utime(path)  # so that a cleaner of old files keeps ours
        busy = self._pinned or has_live_job(client.ask)
        self._leaving = self._leaving or self._idleness.over(busy)

    def _serve(self, message: WireMessage, answer: Answer) -> None:
        asked = message.get("ask")
        if asked == "status":
            answer({"ok": self.status()})
        elif asked == "ready":
            self._agree(PlaneOptions.of(message))
            self._waiting.append(answer)
            if self._ready:
                self._answer_all({"ok": "up"})
        elif asked == "admit":
            answer({"ok": self._admit(str(message.get("agent")), str(message.get("key")))})
        elif asked == "account":
            self._have_account(str(message.get("account")))
            answer({"ok": "up"})
        elif asked == "leave":
            self._leaving = True  # its caller waits until the connection is closed
        else:
            known = "status, ready, admit, account or leave"
            raise UserError(f"unknown request {shorten(str(asked))}; the plane takes {known}")

    def _admit(self, agent: str, key: str) -> dict[str, str]:
        """Sign a token for the agent of another node; return it with the address of NATS."""
        if agent == parts.agent_id():
            raise UserError(f"{agent} is the agent of the plane's own node")
        if not subjects.job_mark(agent):
            raise UserError(f"{shorten(agent)} is not the agent of a job; only those are admitted")
        return self._vouch(agent, key)

    def _have_account(self, name: str) -> None:
        """Start an agent for an account unless there is one; it has the account's rights alone."""
        account = accounts.check(name, may_be_root=False)
        part = self._parts.account(account, lambda end: self._serve_account(name, end))
        if part.name not in self._supervisor.children:
            self._supervisor.start(part)

    def _serve_account(self, name: str, end: socket.socket) -> None:
        """Sign tokens for the agent of an account over a socket that no other process has."""
        agent = parts.account_agent(name)

        def handle(message: WireMessage, fds: list[int]) -> None:
            for fd in fds:
                os.close(fd)
            if connection.unsent > _MOST_UNSENT:
                raise BadFrame("it does not read the replies")
            try:
                connection.send({"ok": self._vouch(agent, str(message.get("key")))})
            except LoomError as error:
                connection.send(complaint(error))

        if (before := self._account_links.pop(name, None)) is not None:
            before.close()
        connection = Connection(end, self._selector, handle, lambda: None)
        connection.longest = _MOST_UNSENT
        self._account_links[name] = connection

    def _vouch(self, agent: str, key: str) -> dict[str, str]:
        """Sign a token for the key of an agent; return it with the address of NATS."""
        try:
            token = self._keys.vouch_for_agent(agent, key, _VOUCHED)
        except ValueError as error:
            raise UserError(str(error)) from error
        authority = self._broker.authority
        known_by = authority.read_text() if authority else ""
        return {"nats": self._broker.address.url, "token": token, "authority": known_by}

    def _agree(self, options: PlaneOptions) -> None:
        """Apply the options of one more caller."""
        if options.host and options.host != self._broker.address.host:
            here = self._broker.address.url
            raise UserError(f"the plane's NATS is at {here}; `loom down` first, then --host again")
        self._pinned = self._pinned or options.pinned
        self._served = self._served or self._pinned or options.served
        self._want(options)

    def _answer_all(self, message: WireMessage) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(message)

    def _on_signal(self, signum: int) -> None:
        if signum != signal.SIGCHLD:
            self._leaving = True


def _answers() -> bool:
    """Tell whether the weaver accepts connections."""
    try:
        client.call(client.door(), 1.0).close()
    except OSError:
        return False
    return True


def _shown(child: PartProcess) -> dict[str, Any]:
    log = str(child.part.log)
    return {"pid": child.pid, "ends": child.ends, "how": child.how, "log": log}


def _json(value: object) -> str:
    import json

    return json.dumps(value, indent=2) + "\n"


@contextlib.contextmanager
def _woken_by_signals(
    selector: selectors.BaseSelector, on_signal: Callable[[int], None]
) -> Iterator[None]:
    """Make signals end a wait of the selector, and call `on_signal` with each."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)

        def serve(_: int) -> None:
            for signum in ours.recv(4096):
                on_signal(signum)

        selector.register(ours, selectors.EVENT_READ, serve)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            selector.unregister(ours)
