"""Several launches that meet: the same command, started on every host by another system.

As with torchrun, one of them is the head: the first node, or the one that can bind the endpoint.
It has the launch process; the others bring an agent to it. All must know one secret: the key in
`$LOOM_HOME`, which hosts of one cluster share, or LOOM_LAUNCH_TOKEN where they do not.
"""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.errors import Failure
from torchloom.launch import wire
from torchloom.launch.grammar.values import NodeCount
from torchloom.launch.protocol import (
    TO_JOB_AGENT,
    AgentProof,
    AppIdReply,
    AppIdRequest,
    LaunchMessage,
    ProofRequest,
    decoding,
)
from torchloom.launch.variables import TOKEN_VARIABLE
from torchloom.launch.wire import Connection
from torchloom.settings import LOCAL_HOST_NAME
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    from torchloom.launch.environments.world import World
    from torchloom.launch.grammar.command import LaunchCommand

JOINED = "joined"  # the launcher's name in requests
NO_ID = "none"  # what torchrun calls a run without a name
_RENDEZVOUS_PORT, _MASTER_PORT = 29400, 29500  # torchrun's defaults
_LONGEST_WAIT, _LAST_CALL = 600.0, 30.0  # torchrun's, too
_AGAIN = 0.1  # seconds between calls at a head that is not there yet
_ONE_CALL = 10.0  # seconds
_REFUSED = "it does not know our key: share $LOOM_HOME, or set LOOM_LAUNCH_TOKEN"


class CannotJoin(Failure):
    """The other launches were not met."""

    code = "cannot_join"


@dataclass(frozen=True, slots=True)
class JointLaunch:
    """Where launches meet, how many, and which of them this one is, if that is known."""

    host: str
    port: int
    nodes: NodeCount
    place: int | None = None
    id: str = ""
    elects: bool = False  # the node that can bind the endpoint is the head, whatever its place
    longest_wait: float = _LONGEST_WAIT
    last_call: float = _LAST_CALL

    @property
    def address(self) -> wire.LaunchAddress:
        return wire.LaunchAddress(host=self.host, port=self.port)


def meeting_of(asked: "LaunchCommand", world: "World") -> JointLaunch | None:
    """Return where this launch meets others; nothing when it is alone in what it does. Pure."""
    if asked.hostfile or asked.per_rank or asked.launcher not in ("auto", "agent", "torchrun"):
        return None
    if is_alone(asked):
        return None
    meet = (_said(asked, world, asked.nodes) if asked.nodes else None) or _found(asked, world)
    conf = dict(asked.rdzv.conf)
    return meet and replace(
        meet,
        longest_wait=_number(conf.get("join_timeout"), _LONGEST_WAIT),
        last_call=_number(conf.get("last_call_timeout"), _LAST_CALL),
    )


def is_alone(asked: "LaunchCommand") -> bool:
    """Tell whether a launch wants one host, whatever is around it."""
    return asked.standalone or (asked.nodes is not None and asked.nodes.most == 1)


def _said(asked: "LaunchCommand", world: "World", nodes: NodeCount) -> JointLaunch | None:
    """Return the meeting that the command line speaks of, as torchrun understands it."""
    endpoint, backend = asked.rdzv.endpoint, asked.rdzv.backend or "static"
    if backend == "static" and asked.node_rank is not None:
        if endpoint:
            host, port = _split(endpoint, _RENDEZVOUS_PORT)
        elif asked.master_addr:
            host, port = asked.master_addr, asked.master_port or _MASTER_PORT
        else:
            return None
        return JointLaunch(host, port, nodes, asked.node_rank, _id(asked))
    if not endpoint and not asked.as_torchrun:
        return None
    host, port = _split(endpoint or LOCAL_HOST_NAME, _RENDEZVOUS_PORT)
    return JointLaunch(host, port, nodes, world.node_rank, _id(asked), elects=True)


def _found(asked: "LaunchCommand", world: "World") -> JointLaunch | None:
    """Return the meeting of commands that a platform or a launcher started once on each host."""
    if not is_one_a_host(world) or not world.head:
        return None
    from torchloom.launch.assembly.topology import shared_port

    count = world.nhosts or 1
    port = world.port or shared_port(world.job_id)
    place = world.rank if world.node_rank is None else world.node_rank
    return JointLaunch(
        world.head, port, asked.nodes or NodeCount(count, count), place, world.job_id or ""
    )


def is_one_a_host(world: "World") -> bool:
    """Tell whether a platform or a launcher started this very command once on each host."""
    if (world.nhosts or 1) < 2 or world.flavour == "torchrun":
        return False
    return world.on_every_host or (world.is_rank and world.local_size == 1)


@dataclass(frozen=True, slots=True)
class JointHead:
    """What the launch process of a meeting is given: where the others call, what they know."""

    listener: socket.socket
    token: str


def take_head(meet: JointLaunch) -> socket.socket | None:
    """Return the socket at which the others will call; nothing when another is the head."""
    if not meet.elects and meet.place not in (0, None):
        return None
    try:
        address = socket.getaddrinfo(meet.host, meet.port, type=socket.SOCK_STREAM)[0][4][0]
        return wire.listen_on(str(address), meet.port)
    except OSError as error:
        if meet.elects or meet.place is None:
            return None  # not our address, or one of us was faster
        raise CannotJoin(
            f"cannot meet at {meet.address}: {error.strerror or error}; name an address and a free "
            "port of the first host with --rdzv-endpoint or --master-addr and --master-port"
        ) from error


def token(meet: JointLaunch, env: Mapping[str, str], home: Path) -> str:
    """Return the secret that all launches of one meeting share."""
    if env.get(TOKEN_VARIABLE):
        return env[TOKEN_VARIABLE]
    # the port and not the host: the first host may call itself localhost
    return wire.proof(_key(home / "launch.key"), "meeting", f"{meet.port} {meet.id}")


def settle(meet: JointLaunch, secret: str) -> socket.socket | str:
    """Be the head, or find it: return the socket for the others, or the id of the head's app."""
    deadline = time.monotonic() + meet.longest_wait
    refused = ""  # the head's own answer explains more than that it is gone since
    while True:
        if (listener := take_head(meet)) is not None:
            return listener
        left = deadline - time.monotonic()
        app_id, problem = _call(meet, secret, left)
        if app_id:
            return app_id
        refused = problem if problem == _REFUSED else refused
        if left <= _AGAIN:
            why = refused or problem
            raise CannotJoin(
                f"could not reach the head at {meet.address} in {meet.longest_wait:g} s: {why}"
            )
        time.sleep(_AGAIN)


def _call(meet: JointLaunch, secret: str, patience: float) -> tuple[str, str]:
    """Call the head once; return the id of its app, or nothing and why."""
    try:
        channel = meet.address.connect(max(_AGAIN, min(patience, _ONE_CALL)))
    except OSError as error:
        return "", error.strerror or str(error)
    return _ask(channel, secret, patience)


def _ask(channel: socket.socket, secret: str, patience: float) -> tuple[str, str]:
    """Return the app's id, or nothing and why."""
    selector = selectors.DefaultSelector()
    answers: list[tuple[str, str]] = []

    def handle(message: LaunchMessage, _fds: list[int]) -> None:
        match message:
            case ProofRequest():
                proof = wire.proof(secret, "agent", message.challenge)
                connection.send(AgentProof(proof))
                connection.send(AppIdRequest())
            case AppIdReply():
                answers.append((message.app_id, ""))

    connection = Connection(
        channel,
        selector,
        decoding(TO_JOB_AGENT, handle),
        lambda: answers.append(("", _REFUSED)),
    )
    deadline = time.monotonic() + patience
    while not answers and (left := deadline - time.monotonic()) > 0:
        for key, ready in selector.select(left):
            key.data(ready)
    connection.close()
    selector.close()
    return answers[0] if answers else ("", "what listens there does not answer")


def _key(path: Path) -> str:
    """Return the user's key for meetings; the first who asks makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{wire.nonce()}")
    if not path.exists():
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(wire.nonce() + wire.nonce())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # whole, or another process'
        partial.unlink()
    return path.read_text()


def _id(asked: "LaunchCommand") -> str:
    return asked.rdzv.id or NO_ID


def _split(endpoint: str, default: int) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdigit():
        return endpoint, default
    return host.strip("[]"), int(port) or default


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text) if text else otherwise
    except ValueError:
        return otherwise
