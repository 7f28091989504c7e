"""Which allocation this is, whether its variables are consistent, whether its hosts exist."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchloom.doctor.findings import CheckFinding, HostPlace, note, ok, problem
from torchloom.errors import UserError
from torchloom.launch.environments import World, find_world
from torchloom.launch.environments.launchers import NOTE
from torchloom.launch.environments.other_jobs import JobsElsewhere
from torchloom.launch.hosts.host_lists import read_hosts
from torchloom.settings import LOOPBACK

SLOW = 0.5  # seconds; a healthy resolver answers in a few thousandths
PATIENCE = 3.0
REMEDY = "export RES_OPTIONS='timeout:1 attempts:1', or add this host to /etc/hosts"
_PATIENCE = 10.0  # seconds for a scheduler
_LOOKUP = 5.0  # seconds for the names of all hosts together
_MANY = 256  # hosts that are looked up


def addresses(hosts: Sequence[str], limit: float) -> dict[str, list[str]]:
    """Return the addresses of each host, asked for all at once; those unanswered are left out."""
    answers: dict[str, list[str]] = {}

    def resolve(host: str) -> Callable[[], None]:
        return lambda: answers.update({host: _resolve(host)})

    _all_within(limit, [resolve(host) for host in hosts])
    return dict(answers)


def reverse_seconds(address: str, limit: float) -> float | None:
    """Return how long the name of an address takes, whatever it is; nothing beyond the limit."""
    started = time.monotonic()
    took: list[float] = []

    def resolve() -> None:
        with contextlib.suppress(OSError):
            socket.getnameinfo((address, 0), 0)
        took.append(time.monotonic() - started)

    _all_within(limit, [resolve])
    return took[0] if took else None


def own_address(own_host: str, limit: float) -> str | None:
    """Return the address that peers would use; nothing when there is only the loopback."""
    found = [*addresses([own_host], limit).get(own_host, []), *_routed()]
    return next((each for each in found if not ipaddress.ip_address(each).is_loopback), None)


def _all_within(limit: float, calls: Sequence[Callable[[], None]]) -> None:
    """Run all in threads; those that take longer are not waited for, and end with this process."""
    deadline = time.monotonic() + limit
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]


def _routed() -> list[str]:
    """Return the address from which packets would leave; a datagram's connect sends none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documentation, RFC 5737
        except OSError:
            return []
        return [probe.getsockname()[0]]


def ports(place: HostPlace) -> Iterator[CheckFinding]:
    """Meet ourselves on the loopback, and on the address that peers would use."""
    if text := meet(LOOPBACK):
        yield problem("ports", f"{LOOPBACK}: {text}", "bring up the loopback: ip link set lo up")
        return
    own = own_address(place.own_host, PATIENCE)
    if own is None:
        remedy = f"for ranks on other hosts: give {place.own_host} an address in /etc/hosts"
        yield note("ports", "the loopback works; this host has no other address", remedy)
    elif text := meet(own):
        remedy = f"{place.own_host} must resolve to an address of this host; open its firewall"
        yield problem("ports", f"{own}: {text}", remedy)
    else:
        yield ok("ports", f"open on the loopback and on {own}")


def names(place: HostPlace) -> Iterator[CheckFinding]:
    """Ask for the name of our address, as torch's TCPStore does at every connect."""
    address = own_address(place.own_host, PATIENCE) or LOOPBACK
    seconds = reverse_seconds(address, PATIENCE)
    if seconds is None:
        yield note("dns", f"the name of {address}: no answer in {PATIENCE:g} s", REMEDY)
    elif seconds > SLOW:
        yield note("dns", f"the name of {address} took {seconds:.1f} s", REMEDY)
    else:
        yield ok("dns", f"the name of {address} is answered in {seconds * 1000:.0f} ms")


def meet(address: str) -> str:
    """Listen on any port of an address and connect to it; return what went wrong."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind((address, 0))
            server.listen(1)
            client.settimeout(PATIENCE)
            client.connect(server.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def scheduler(place: HostPlace) -> Iterator[CheckFinding]:
    """Report the allocation of this shell, variables left over from another, and jobs elsewhere."""
    world = world_of(place)
    if world is None:
        return  # the hostfile check reports why
    stale = [text for text in world.notes if text != NOTE]
    if world.flavour == "plain":
        yield ok("scheduler", "no allocation: ranks run on this host")
        yield from _elsewhere(place)
    else:
        job = f" job {world.job_id}" if world.job_id else ""
        hosts = f", {world.nhosts} hosts" if world.nhosts else ""
        yield ok("scheduler", f"{world.flavour}{job}{hosts}, {world.size} ranks")
    for text in stale:
        name = text.partition("=")[0]
        yield note("scheduler", text, f"unset {name}" if name.isidentifier() else "see `loom plan`")


def hostfile(place: HostPlace) -> Iterator[CheckFinding]:
    """Read the file that names the hosts, and ask for the address of each."""
    chosen = place.hostfile or _named(place, "PBS_NODEFILE") or _named(place, "HOSTFILE")
    if chosen is None:
        world = world_of(place)
        hosts = world.hosts if world and world.flavour != "plain" else ()
        if not hosts:
            yield ok("hosts", "no host file; only this host")
            return
    else:
        try:
            hosts = tuple(each.host for each in read_hosts(chosen))
        except (UserError, UnicodeDecodeError) as error:
            remedy = "pass --hostfile FILE, or unset the variable that names it"
            yield problem("hosts", str(error).partition(";")[0], remedy)
            return
    yield _resolves(hosts)


def _named(place: HostPlace, variable: str) -> Path | None:
    return Path(place.env[variable]) if place.env.get(variable) else None


def world_of(place: HostPlace) -> World | None:
    """Return the allocation; nothing when a file that should name its hosts is spoiled."""
    try:
        return find_world(place.env, place.own_host)
    except UserError:
        return None


def _elsewhere(place: HostPlace) -> Iterator[CheckFinding]:
    jobs = JobsElsewhere(lambda words: place.ask(words, _PATIENCE), place.user).all()
    for job in jobs[:3]:
        text = f"your {job.flavour} job {job.job_id} runs on {job.nhosts} other hosts"
        yield note("scheduler", text, f"ssh {job.head}, or `loom env load` what was saved there")


def _resolves(hosts: Sequence[str]) -> CheckFinding:
    known = addresses(hosts[:_MANY], _LOOKUP)
    lost = [host for host in hosts[:_MANY] if not known.get(host)]
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        remedy = "fix the host file, or /etc/hosts and DNS here"
        return problem("hosts", f"no address for {shown}", remedy)
    return ok("hosts", f"{len(hosts)} hosts, all with an address")
