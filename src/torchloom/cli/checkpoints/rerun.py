"""Run a job's program again for some of its steps, as a separate run that leaves no records."""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.bus.codec import Frames, MessageReader, frame
from torchloom.errors import Failure, UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest, RoleRequest
from torchloom.launch.variables import JOB_VARIABLE
from torchloom.messages.plane import Applied, Event, FromRank, Kept, Planned, Register, Welcome
from torchloom.schedulers.local_scheduler import LocalRequest, create_scheduler
from torchloom.specs.api import AppDryRunInfo, AppState

_EPOCH = 1
_CHUNK = 1 << 16
_LATER = "1"  # ranks of a generation after the first receive the knob changes
_LONG = 3600.0


class ReplayAgent:
    """A stand-in for the agent: a socket that replies to ranks and records their messages."""

    def __init__(self, folder: Path, changes: Sequence[Planned]) -> None:
        self.path = folder / "replay.sock"
        self.acted: set[str] = set()  # commands of the log that took effect
        self.restored: list[dict[str, Any]] = []  # each rank's report on its restored checkpoint
        self._changes = tuple(changes)
        self._links: dict[socket.socket, Frames] = {}
        self._selector = selectors.DefaultSelector()
        self._awake, self._wake = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._run, name="replay-agent", daemon=True)

    def __enter__(self) -> "ReplayAgent":
        from torchloom.unix import reachable

        with reachable(self.path) as address:
            self._listener.bind(address)
        os.chmod(self.path, 0o600)
        self._listener.listen(128)
        for end in (self._listener, self._awake):
            self._selector.register(end, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        for end in (self._listener, self._awake, self._wake, *self._links):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._awake:
                    return
                if key.fileobj is self._listener:
                    link, _ = self._listener.accept()
                    self._links[link] = Frames()
                    self._selector.register(link, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._receive(key.fileobj)

    def _receive(self, link: socket.socket) -> None:
        reader: MessageReader[Any] = MessageReader(FromRank)
        try:
            data = link.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(link)
            del self._links[link]
            link.close()
            return
        for whole in self._links[link].feed(data):
            self._handle(link, reader.read(whole))

    def _handle(self, link: socket.socket, message: Any) -> None:
        match message:
            case Register(head=head):
                with contextlib.suppress(OSError):  # the rank has ended, which is noticed elsewhere
                    link.sendall(frame(Kept(head, 0)))
                    link.sendall(frame(Welcome(head, _EPOCH, self._changes)))
            case Applied(command=command):
                self.acted.add(command)
            case Event(kind="restored", facts=facts):
                self.restored.append(dict(facts))


class NotReplayed(Failure):
    """The program could not be run again."""

    code = "not_replayed"


def again(
    request: LaunchRequest, app_id: str, world_size: int, variables: Mapping[str, str]
) -> LaunchRequest:
    """Return a request for the same program with another id, no checkpoints and no restarts."""
    if request.carrier is not None or request.nodes:
        raise UserError(f"{request.app_id} ran on several hosts; a replay runs on this host only")
    roles = tuple(
        replace(
            role,
            max_retries=0,
            workspace=None,  # the job's copy still exists
            replicas=tuple(
                replace(one, env={**one.env, **variables}) for one in _fitted(role, world_size)
            ),
            ranks=world_size if role.distributed else role.ranks,
            uneven=(),
        )
        for role in request.roles
    )
    return replace(
        request,
        app_id=app_id,
        run_id="",
        log_dir=str(settings.runs_dir() / app_id / "logs"),
        roles=roles,
        copies="",
        policy={"recovery": "restart"},  # no plane watches it
        checkpoints="",
        saves=False,
        backoff=0.0,
        attempt=0,
        generation=0,
        resume_from=None,
        until=None,
        own_end=None,
    )


def _fitted(role: RoleRequest, world_size: int) -> tuple[Any, ...]:
    """Return the replicas of a role, after a check that it can have `world_size` ranks."""
    if not role.distributed:
        if world_size != 1:
            raise UserError(f"role {role.name} is not a group of {world_size} ranks")
        return role.replicas
    if len(role.replicas) > 1:
        raise UserError(f"role {role.name} ran on several hosts; a replay runs on one host only")
    return role.replicas


@contextlib.contextmanager
def running(job: str, request: LaunchRequest, keep: bool) -> Iterator[None]:
    """Run the request to its end; its folder exists inside the context and is removed after it.

    The folder of a failed run is kept, so that its logs can be read.
    """
    scheduler = create_scheduler("torchx")
    app = RunFolder.named(job).app()
    info = AppDryRunInfo(LocalRequest(request, app), str)
    try:
        with _as_part_of(job):
            scheduler.start(info).close()
        while not scheduler.wait(request.app_id, _LONG):
            pass
        _check(request.app_id)
        yield
        if not keep:
            scheduler.delete(request.app_id)
    except BaseException:
        scheduler.stop(request.app_id, at_once=True)
        raise


def _check(app_id: str) -> None:
    record = catalog.record(app_id)
    if record is None or record.state is not AppState.SUCCEEDED:
        why = record.reason if record else "its record is gone"
        raise NotReplayed(
            f"the program failed in the replay: {why}; `loom logs {app_id}` shows its output, "
            f"`loom rm {app_id}` removes that run"
        )


@contextlib.contextmanager
def _as_part_of(job: str) -> Iterator[None]:
    """Start processes as part of a job: no plane lists them, takes them over or starts for them."""
    before = settings.environment()
    settings.replace_environment({**before, JOB_VARIABLE: job, "LOOM_PLANE": "0"})
    try:
        yield
    finally:
        settings.replace_environment(before)


def variables(place: str, until: int, digests: Path, agent: Path) -> dict[str, str]:
    """Return the environment variables for ranks that repeat steps and record every tensor."""
    return {
        "LOOM_RESUME": place,
        "LOOM_UNTIL": str(until),
        "LOOM_DIGESTS": str(digests),
        "LOOM_AGENT": str(agent),
        "LOOM_GENERATION": _LATER,
    }


def new_id(job: str) -> str:
    """Return an id for a replay of a job."""
    return f"{job[:100]}-replay-{os.urandom(3).hex()}"
