"""Messages of the weaver to a rank, handled in the link's thread: prepare, outcome, welcome."""

import contextlib
import os
import sys
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, get_args

import msgspec

from torchloom.errors import Failure, LoomError
from torchloom.messages.membership import ToMember
from torchloom.messages.plane import (
    Decided,
    Kind,
    Message,
    Outcome,
    Planned,
    Prepare,
    RankRefusal,
    Ready,
    Value,
    Welcome,
    Write,
)
from torchloom.worker.recovery.membership import MembershipLink
from torchloom.worker.threadlet.boundary import StepBoundary
from torchloom.worker.threadlet.rank_identity import RankIdentity

ABORT = "abort"
_COMMIT = "commit "
_FILE, _TCP = "file://", "tcp://"
_PATIENCE = timedelta(seconds=2)  # for a store process that does not answer
_UNREACHABLE = (OSError, RuntimeError, LoomError)  # torch's stores raise RuntimeError
_MEMBERSHIP = get_args(ToMember)


class NoStore(Failure):
    """The ranks of this job have no store to agree in."""

    code = "no_store"


class Outcomes(Protocol):
    """First-writer-wins entries, the same for all ranks of a generation."""

    def first(self, key: str, value: str) -> str:
        """Write the value unless there is one; return what is there now."""
        ...


class OwnOutcomes:
    """Outcomes of a single process."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._lock = threading.Lock()

    def first(self, key: str, value: str) -> str:
        with self._lock:
            return self._entries.setdefault(key, value)


class FileOutcomes:
    """Outcomes for ranks of one host: one file per entry, beside the rendezvous file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def first(self, key: str, value: str) -> str:
        entry = self._folder / urllib.parse.quote(key, safe="")
        partial = self._folder / f".{os.getpid()}-{threading.get_ident()}"
        partial.write_text(value)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(partial, entry)
        finally:
            partial.unlink()
        return entry.read_text()


class TcpOutcomes:
    """Outcomes for ranks of several hosts: torch's store, over a separate connection."""

    def __init__(self, host: str, port: int, generation: int) -> None:
        torch_distributed: Any = sys.modules["torch.distributed"]
        self._store = torch_distributed.TCPStore(host, port, is_master=False, timeout=_PATIENCE)
        self._prefix = f"loom/{generation}/"

    def first(self, key: str, value: str) -> str:
        found: bytes = self._store.compare_set(self._prefix + key, "", value)
        return found.decode()


def open_outcomes(store: str, world_size: int, generation: int) -> Outcomes:
    """Return the store at this address. It may block, so not in the training thread."""
    if store.startswith(_FILE):
        return FileOutcomes(Path(f"{store.removeprefix(_FILE)}.outcomes"))
    if store.startswith(_TCP):
        return _connected(*_address(store), generation)
    if world_size > 1:
        raise NoStore("the ranks have no store to agree in; start them with `loom launch`")
    return OwnOutcomes()


def to_text(effective: int | None) -> str:
    """Return an outcome as the store has it: `abort`, or `commit 412`."""
    return ABORT if effective is None else f"{_COMMIT}{effective}"


def from_text(text: str) -> int | None:
    """Return the step of a commit, or None for an abort."""
    return int(text.removeprefix(_COMMIT)) if text.startswith(_COMMIT) else None


def _address(store: str) -> tuple[str, int]:
    host, _, port = store.removeprefix(_TCP).rpartition(":")
    return host.strip("[]"), int(port)


def _connected(host: str, port: int, generation: int) -> Outcomes:
    if "torch.distributed" not in sys.modules:
        raise NoStore("ranks of several hosts agree through torch's store, and torch is not loaded")
    try:
        return TcpOutcomes(host, port, generation)
    except RuntimeError as error:
        raise NoStore(f"the store at {host}:{port} does not answer: {error}") from error


Send = Callable[[Message], None]
Check = Callable[[Kind, dict[str, Value]], None]  # raises what is wrong with a command


class OutcomeStore:
    """The store of a generation, opened in the link's thread before the first promise."""

    def __init__(self, identity: RankIdentity, send: Send) -> None:
        self._identity = identity
        self._send = send
        self._outcomes: Outcomes | None = None

    def move_on(self, identity: RankIdentity) -> None:
        """Use the store of another generation from now on."""
        self._identity, self._outcomes = identity, None

    def open(self) -> Outcomes:
        """Return the store; raise the error that is reported to the weaver if there is none."""
        if self._outcomes is None:
            identity = self._identity
            self._outcomes = open_outcomes(identity.store, identity.world_size, identity.generation)
        return self._outcomes

    def write(self, command: str, effective: int | None) -> int | None:
        """Write an outcome unless there is one; return and report the one that holds."""
        effective = from_text(self.open().first(f"command/{command}", to_text(effective)))
        self._send(Decided(self._identity.head(), command, effective))
        return effective

    def abort(self, command: str) -> int | None:
        """Write an abort for a rank that can wait no longer; None if the store is unreachable."""
        try:
            return self.write(command, None)
        except _UNREACHABLE as error:
            sys.stderr.write(f"loom: no outcome for a command, it is dropped here: {error}\n")
            return None

    def agree(self, changes: tuple[Planned, ...]) -> tuple[Planned, ...]:
        """Return the changes that the first rank was sent; none if the store is unreachable."""
        try:
            mine = msgspec.json.encode(changes).decode()
            found = self.open().first("changes", mine)
            return msgspec.json.decode(found, type=tuple[Planned, ...])
        except (*_UNREACHABLE, msgspec.MsgspecError, TypeError, ValueError) as error:
            sys.stderr.write(f"loom: knobs begin with the program's values: {error}\n")
            return ()


class RankControl:
    """Replies to the weaver for this rank."""

    def __init__(
        self,
        identity: RankIdentity,
        boundary: StepBoundary,
        judge: OutcomeStore,
        check: Check,
        send: Send,
        membership: Callable[[], MembershipLink | None],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.changes: tuple[Planned, ...] = ()
        self.welcomed = threading.Event()
        self._identity = identity
        self._head = identity.head()
        self._boundary = boundary
        self._judge = judge
        self._check = check
        self._send = send
        self._membership = membership

    def move_on(self, identity: RankIdentity) -> None:
        """Reply for another generation from now on."""
        self._identity, self._head = identity, identity.head()

    def handle(self, message: Message) -> None:
        """Handle a message; one for another incarnation of the rank is dropped and counted."""
        if isinstance(message, _MEMBERSHIP) and (line := self._membership()) is not None:
            if self._identity.is_named(message.head):
                line.receive(message)
            return
        if not self._identity.is_meant(message.head):
            self.dropped["foreign"] += 1
            return
        match message:
            case Prepare():
                self._prepare(message)
            case Write():
                self._write(message)
            case Outcome():
                self._boundary.settle(message.command, message.effective)
            case Welcome() if not self.welcomed.is_set():
                self.changes = message.changes
                self.welcomed.set()

    def _prepare(self, message: Prepare) -> None:
        try:
            self._check(message.kind, message.payload)
            self._judge.open()
        except (LoomError, OSError) as error:
            self._send(RankRefusal(self._head, message.command, str(error)))
            return
        order = self._boundary.promise(message.command, message.kind, message.payload)
        if order is None:
            known = self._boundary.outcome(message.command)
            self._send(Decided(self._head, message.command, known))
        else:
            self._send(Ready(self._head, message.command, order.step, order.ahead))

    def _write(self, message: Write) -> None:
        try:
            effective = self._judge.write(message.command, message.effective)
        except _UNREACHABLE as error:  # then the first rank at its limit decides
            sys.stderr.write(f"loom: cannot write the outcome of a command: {error}\n")
        else:
            self._boundary.settle(message.command, effective)
