"""Several launches that meet: the same command, started on every host by somebody else.

As with torchrun, one of them is the head: the first node, or whoever can take the endpoint. It has
the launch process; the others bring an agent to it. All must know one secret: the key in
`$LOOM_HOME`, which hosts of one cluster share, or LOOM_LAUNCH_TOKEN where they do not.
"""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import Failure
from torchloom.launch import link
from torchloom.launch.assembly.topology import shared_port
from torchloom.launch.command import LaunchCommand
from torchloom.launch.contract import TOKEN_VARIABLE
from torchloom.launch.environments.world import World
from torchloom.launch.frames import Connection, Message
from torchloom.launch.values import Nodes

JOINED = "joined"  # the launcher's name in requests
_RENDEZVOUS_PORT, _MASTER_PORT = 29400, 29500  # torchrun's defaults
_LONGEST_WAIT, _LAST_CALL = 600.0, 30.0  # torchrun's, too
_AGAIN = 0.1  # seconds between calls at a head that is not there yet


class CannotJoin(Failure):
    """The other launches were not met."""

    code = "cannot_join"


@dataclass(frozen=True, slots=True)
class Meet:
    """Where launches meet, how many, and which of them this one is, if that is known."""

    host: str
    port: int
    nodes: Nodes
    place: int | None = None
    id: str = ""
    longest_wait: float = _LONGEST_WAIT
    last_call: float = _LAST_CALL

    @property
    def address(self) -> link.Address:
        return link.Address(host=self.host, port=self.port)


def meeting_of(asked: LaunchCommand, world: World) -> Meet | None:
    """Return where this launch meets others; nothing when it is alone in what it does. Pure."""
    if asked.hostfile or asked.per_rank or asked.launcher not in ("auto", "agent", "torchrun"):
        return None
    conf = dict(asked.rdzv.conf)
    waits = {
        "longest_wait": _number(conf.get("join_timeout"), _LONGEST_WAIT),
        "last_call": _number(conf.get("last_call_timeout"), _LAST_CALL),
    }
    if asked.nodes is not None and asked.nodes.most > 1:
        place = asked.node_rank if _is_static(asked) else world.node_rank
        if asked.rdzv.endpoint:
            host, port = _split(asked.rdzv.endpoint, _RENDEZVOUS_PORT)
            return Meet(host, port, asked.nodes, place, asked.rdzv.id or "", **waits)
        if asked.node_rank is not None and asked.master_addr:
            port = asked.master_port or _MASTER_PORT
            return Meet(asked.master_addr, port, asked.nodes, asked.node_rank, "", **waits)
    if is_one_a_host(world) and world.head:
        count = world.nhosts or 1
        nodes = asked.nodes or Nodes(count, count)
        port = world.port or shared_port(world.job_id)
        place = world.rank if world.node_rank is None else world.node_rank
        return Meet(world.head, port, nodes, place, world.job_id or "", **waits)
    return None


def is_one_a_host(world: World) -> bool:
    """Tell whether a platform or a launcher started this very command once on each host."""
    if (world.nhosts or 1) < 2 or world.flavour == "torchrun":
        return False
    return world.on_every_host or (world.is_rank and world.local_size == 1)


@dataclass(frozen=True, slots=True)
class Head:
    """What the launch process of a meeting is given: where the others call, what they know."""

    listener: socket.socket
    token: str


def take_head(meet: Meet) -> socket.socket | None:
    """Return the socket at which the others will call; nothing when another is the head."""
    if meet.place not in (0, None):
        return None
    try:
        address = socket.getaddrinfo(meet.host, meet.port, type=socket.SOCK_STREAM)[0][4][0]
        return link.listen_on(str(address), meet.port)
    except OSError as error:
        if meet.place is None:
            return None  # not our address, or one of us was faster
        raise CannotJoin(
            f"cannot meet at {meet.address}: {error.strerror or error}; name an address and a free "
            "port of the first host with --rdzv-endpoint or --master-addr and --master-port"
        ) from error


def token(meet: Meet, env: Mapping[str, str], home: Path) -> str:
    """Return what all launches of one meeting know, and nobody else."""
    if env.get(TOKEN_VARIABLE):
        return env[TOKEN_VARIABLE]
    return link.proof(_key(home / "launch.key"), "meeting", f"{meet.address} {meet.id}")


def find_head(meet: Meet, secret: str) -> str:
    """Call the head until it answers; return the id of the app that it launches."""
    deadline = time.monotonic() + meet.longest_wait
    problem = "nobody listens there"
    while time.monotonic() < deadline:
        try:
            channel = meet.address.connect()
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            if app_id := _ask(channel, secret):
                return app_id
            problem = "it does not know our key: share $LOOM_HOME, or set LOOM_LAUNCH_TOKEN"
        time.sleep(_AGAIN)
    raise CannotJoin(
        f"the head at {meet.address} was not met in {meet.longest_wait:g} s: {problem}"
    )


def _ask(channel: socket.socket, secret: str) -> str:
    """Return the app's id, or nothing when the head hung up."""
    selector = selectors.DefaultSelector()
    answers: list[str] = []

    def hear(message: Message, _fds: list[int]) -> None:
        if message["do"] == "prove":
            proof = link.proof(secret, "agent", message["challenge"])
            connection.send({"say": "proof", "proof": proof})
            connection.send({"say": "ask"})
        elif message["do"] == "tell":
            answers.append(message["app_id"])

    connection = Connection(channel, selector, hear, lambda: answers.append(""))
    while not answers:
        for key, ready in selector.select():
            key.data(ready)
    connection.close()
    return answers[0]


def _key(path: Path) -> str:
    """Return the user's key for meetings; the first who asks makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{link.nonce()}")
    if not path.exists():
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(link.nonce() + link.nonce())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # whole, or somebody else's
        partial.unlink()
    return path.read_text()


def _is_static(asked: LaunchCommand) -> bool:
    return (asked.rdzv.backend or "static") == "static" and asked.node_rank is not None


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
