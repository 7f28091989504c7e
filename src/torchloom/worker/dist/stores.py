"""The rendezvous of the ranks: address, port, and the store they agree in."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed
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
from torchloom.worker import environment
from torchloom.worker.dist.place import RankPlace

# All ranks of a launch have the same value in these; no launcher sets all of them.
NUMBERS = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "PALS_APID"),
    *("LSB_JOBID", "JSM_JSRUN_PID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("LOOM_JOB",),
)
# Each of these alone identifies a launch of one user on one host.
TELLING = ("SLURM_STEP_ID", "PMIX_NAMESPACE", "PALS_APID", "LOOM_JOB")
LAUNCHERS = (
    *("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "orterun", "orted", "prterun", "prted"),
    *("slurmstepd", "palsd", "jsmd", "jsrun"),
)
_PAUSE = 0.01  # seconds between two checks for rank 0's file


_torch: Any = torch.distributed


class RankStore(Protocol):
    """Keys and values that all ranks see; `get` waits for a key until the store's timeout."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return a value as soon as it exists."""


def rendezvous(place: RankPlace, timeout: timedelta) -> RankStore:
    """Return the store of `env://`: the launcher's own, or one at MASTER_ADDR."""
    rank, size = place.rank, place.world_size
    found: RankStore = next(
        _torch.rendezvous("env://", rank=rank, world_size=size, timeout=timeout)
    )[0]
    return found


def serve(host: str, port: int, fd: int, world_size: int, timeout: timedelta) -> RankStore:
    """Return a store that this process serves on a listening socket, once all ranks are there."""
    store: RankStore = _torch.TCPStore(host, port, world_size, True, timeout, master_listen_fd=fd)
    return store


def connect(host: str, port: int, world_size: int, timeout: timedelta) -> RankStore:
    """Return the store that rank 0 serves."""
    store: RankStore = _torch.TCPStore(host, port, world_size, False, timeout)
    return store


def apart(name: str, store: RankStore) -> RankStore:
    """Return a part of a store, with a prefix for its keys."""
    inner: RankStore = _torch.PrefixStore(name, store)
    return inner


def alone() -> RankStore:
    """Return a store within this process."""
    store: RankStore = _torch.HashStore()
    return store


def start(
    backend: str,
    store: RankStore,
    place: RankPlace,
    timeout: timedelta,
    device: torch.device | None = None,
) -> None:
    """Start torch's default group; with a device, it connects at once."""
    _torch.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        device_id=device,
    )


def exchange(store: RankStore, topic: str, place: RankPlace, text: str) -> list[str]:
    """Return every rank's text, in rank order; rank 0 collects, so a rank reads one entry."""
    store.set(f"{topic}/{place.rank}", text)
    if place.rank == 0:
        texts = [store.get(f"{topic}/{rank}").decode() for rank in range(place.world_size)]
        store.set(f"{topic}/all", json.dumps(texts))
    found: list[str] = json.loads(store.get(f"{topic}/all"))
    return found


def launch_key(env: Mapping[str, str]) -> str:
    """Return a key that only the ranks of one launch on this host have."""
    words = [f"{name}={env[name]}" for name in NUMBERS if name in env]
    if not any(name in env for name in TELLING):
        words.append(str(launcher_of(os.getpid())))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]


def launcher_of(pid: int, proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """Return the nearest launcher among the ancestors of a process, else its parent."""
    parent = _parent(pid, proc) or os.getppid()
    above: int | None = parent
    while above is not None and above > 1:
        if _name(above, proc).startswith(LAUNCHERS):
            return ProcessIdentity.of(above)
        above = _parent(above, proc)
    return ProcessIdentity.of(parent)


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int, proc: Path) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class NoMeetingPoint(UserError):
    """Ranks are on several hosts, and the address of rank 0 is not known."""

    code = "no_meeting_point"


class RanksMissing(Failure):
    """Other ranks did not come to the rendezvous."""

    code = "nobody_came"


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Rank 0's address; without a port, rank 0 chooses one and writes it to a file."""

    address: str
    port: int | None


def meeting_of(
    world: World,
    env: Mapping[str, str],
    place: RankPlace,
    own_host: str,
    port: int | None = None,
) -> MeetingPlace:
    """Return the rendezvous: from the variables, else by a rule that all ranks share."""
    address = env.get("MASTER_ADDR") or world.address
    port = _port(env) or world.port or port
    if address:
        return MeetingPlace(address, port or shared_port(world.job_id))
    if place.on_one_host:
        return MeetingPlace(LOOPBACK, port)
    return MeetingPlace(_head(world, env, place, own_host), port or shared_port(world.job_id))


def _port(env: Mapping[str, str]) -> int | None:
    text = env.get("MASTER_PORT", "")
    port = number(env, "MASTER_PORT")
    if text and (port is None or not 0 < port < 2**16):
        raise NoMeetingPoint(f"MASTER_PORT={shorten(text)!r} is not a port; set it to 1..65535")
    return port


def _head(world: World, env: Mapping[str, str], place: RankPlace, own_host: str) -> str:
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


def open_store(meeting: MeetingPlace, place: RankPlace, timeout: timedelta) -> RankStore:
    """Connect to the other ranks and return the store; set torch's variables for it."""
    environment.export({"MASTER_ADDR": meeting.address})  # `env://` reads both
    try:
        if meeting.port is None:
            return _open_on_free_port(place, timeout)
        environment.export({"MASTER_PORT": str(meeting.port)})
        return rendezvous(place, timeout)
    except DistError as error:
        where = f"{meeting.address}:{environment.text('MASTER_PORT')}"
        raise RanksMissing(
            f"rank {place.rank} of {place.world_size} did not meet all others at {where} "
            f"({shorten(str(error))}); check that all ranks run, that this address is rank 0's and "
            "that no firewall is between, or set MASTER_ADDR and MASTER_PORT"
        ) from error


def _open_on_free_port(place: RankPlace, timeout: timedelta) -> RankStore:
    """Rank 0 listens on a free loopback port and writes it to a file, which the others read."""
    note = runtime_dir() / f"meeting-{launch_key(environment.variables())}.json"
    if place.rank:
        port = _read_note(note, timeout)
        environment.export({"MASTER_PORT": str(port)})
        return connect(LOOPBACK, port, place.world_size, timeout)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(place.world_size)
        port = listener.getsockname()[1]
        environment.export({"MASTER_PORT": str(port)})
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
    """Return the port of a live rank 0; a file of a dead one is ignored."""
    _check_private(note.parent)
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            found = json.loads(note.read_text())
            if ProcessIdentity.from_dict(found["by"]).is_alive():
                port: int = found["port"]
                return port
        except FileNotFoundError:
            pass
        time.sleep(_PAUSE)
    raise RanksMissing(
        f"rank 0 did not connect to {host_name()} within {timeout.total_seconds():g} s; "
        "if it runs on another host, set MASTER_ADDR and MASTER_PORT"
    )
