"""Where the ranks of a job meet: an address, a port, and the store they agree through."""

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError

from torchloom.errors import Failure, UserError, shorten
from torchloom.launch.assembly.topology import HostTopology, head_address, shared_port
from torchloom.launch.environments import World
from torchloom.launch.environments.world import number
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.hosts.host_lists import index_of
from torchloom.launch.hosts.sites import find_site, read_sites
from torchloom.settings import LOOPBACK, runtime_dir
from torchloom.unix import make_private
from torchloom.worker.dist.kinship import launch_key
from torchloom.worker.dist.place import Place
from torchloom.worker.dist.store import Store, connect, rendezvous, serve

_PAUSE = 0.01  # seconds between two looks for a file that rank 0 is about to write


class NoMeetingPoint(UserError):
    """Ranks on several hosts, and nobody says where rank 0 is."""

    code = "no_meeting_point"


class NobodyCame(Failure):
    """The other ranks did not come to where this one waited."""

    code = "nobody_came"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Rank 0's address; without a port, rank 0 takes a free one and its host's ranks find it."""

    address: str
    port: int | None


def meeting_of(
    world: World,
    env: Mapping[str, str],
    place: Place,
    own_host: str,
    port: int | None = None,
) -> Meeting:
    """Return where to meet: the launcher's or the user's word, else a rule all ranks share."""
    address = env.get("MASTER_ADDR") or world.address
    port = _port(env) or world.port or port
    if address:
        return Meeting(address, port or shared_port(world.job_id))
    if place.on_one_host:
        return Meeting(LOOPBACK, port)
    return Meeting(_head(world, env, place, own_host), port or shared_port(world.job_id))


def _port(env: Mapping[str, str]) -> int | None:
    text = env.get("MASTER_PORT", "")
    port = number(env, "MASTER_PORT")
    if text and (port is None or not 0 < port < 2**16):
        raise NoMeetingPoint(f"MASTER_PORT={shorten(text)!r} is no port; set it to 1..65535")
    return port


def _head(world: World, env: Mapping[str, str], place: Place, own_host: str) -> str:
    if not world.hosts:
        raise NoMeetingPoint(
            f"{place.world_size} ranks on several hosts, and {world.flavour} does not tell them "
            "where rank 0 is: set MASTER_ADDR to its host for all of them "
            "(`mpirun -x MASTER_ADDR=HOST`), or start them by `loom launch`"
        )
    if place.rank == 0 and index_of(own_host, world.hosts[1:]) is not None:
        raise NoMeetingPoint(
            f"rank 0 is on {own_host}, not on the first host, {world.hosts[0]}: "
            f"set MASTER_ADDR={own_host} for all ranks"
        )
    topology = HostTopology(world.hosts, (1,) * len(world.hosts))
    return head_address(world, topology, find_site(read_sites(()), own_host, env).address)


def open_store(meeting: Meeting, place: Place, timeout: timedelta) -> Store:
    """Meet the other ranks and return the store; torch's variables name it from now on."""
    os.environ["MASTER_ADDR"] = meeting.address
    try:
        if meeting.port is None:
            return _open_on_free_port(place, timeout)
        os.environ["MASTER_PORT"] = str(meeting.port)
        return rendezvous(place, timeout)
    except DistError as error:
        where = f"{meeting.address}:{os.environ['MASTER_PORT']}"
        raise NobodyCame(
            f"rank {place.rank} of {place.world_size} did not meet all others at {where} "
            f"({shorten(str(error))}); check that all ranks run, that this address is rank 0's and "
            "that no firewall is between, or set MASTER_ADDR and MASTER_PORT"
        ) from error


def _open_on_free_port(place: Place, timeout: timedelta) -> Store:
    """Rank 0 listens on a free port of the loopback and leaves a note; the others read it."""
    note = runtime_dir() / f"meeting-{launch_key(os.environ)}.json"
    if place.rank:
        port = _read_note(note, timeout)
        os.environ["MASTER_PORT"] = str(port)
        return connect(LOOPBACK, port, place.world_size, timeout)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(place.world_size)
        port = listener.getsockname()[1]
        os.environ["MASTER_PORT"] = str(port)
        _write_note(note, port)
        fd = os.dup(listener.fileno())  # the store closes it
        try:
            return serve(LOOPBACK, port, fd, place.world_size, timeout)
        finally:
            note.unlink(missing_ok=True)


def _write_note(note: Path, port: int) -> None:
    _check_private(note.parent)
    partial = note.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"port": port, "by": asdict(ProcessIdentity.mine())}))
    partial.replace(note)


def _check_private(folder: Path) -> None:
    try:
        make_private(folder)
    except OSError as error:
        why = error.strerror or str(error)
        text = f"ranks cannot meet in {folder}: {why}; set XDG_RUNTIME_DIR to a folder of yours"
        raise Failure(text) from error


def _read_note(note: Path, timeout: timedelta) -> int:
    """Return the port of a rank 0 that lives; what a dead one left is waited out."""
    _check_private(note.parent)
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            told = json.loads(note.read_text())
            if ProcessIdentity.from_dict(told["by"]).is_alive():
                port: int = told["port"]
                return port
        except FileNotFoundError:
            pass
        time.sleep(_PAUSE)
    raise NobodyCame(
        f"rank 0 did not come to {host_name()} within {timeout.total_seconds():g} s; "
        "if it runs on another host, set MASTER_ADDR and MASTER_PORT"
    )
