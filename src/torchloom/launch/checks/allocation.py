"""Which allocation we are in, whether its variables are to be believed, whether its hosts exist."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torchloom.errors import UserError
from torchloom.launch.checks.finding import Finding, Place, note, ok, problem
from torchloom.launch.checks.lookup import addresses
from torchloom.launch.environments import World, find_world
from torchloom.launch.environments.plain import NOTE
from torchloom.launch.hostfile import read_hosts
from torchloom.launch.jobs_elsewhere import JobsElsewhere

_PATIENCE = 10.0  # seconds for a scheduler
_LOOKUP = 5.0  # seconds for the names of all hosts together
_MANY = 256  # hosts that are looked up


def scheduler(place: Place) -> Iterator[Finding]:
    """Tell the allocation of this shell, variables left over from another, and jobs elsewhere."""
    world = world_of(place)
    if world is None:
        return  # the hostfile check says why
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


def hostfile(place: Place) -> Iterator[Finding]:
    """Read the file that names the hosts, and ask for the address of each."""
    chosen = place.hostfile or _named(place, "PBS_NODEFILE") or _named(place, "HOSTFILE")
    if chosen is None:
        world = world_of(place)
        hosts = world.hosts if world and world.flavour != "plain" else ()
        if not hosts:
            yield ok("hosts", "no host file; this host alone")
            return
    else:
        try:
            hosts = tuple(each.host for each in read_hosts(chosen))
        except (UserError, UnicodeDecodeError) as error:
            remedy = "pass --hostfile FILE, or unset the variable that names it"
            yield problem("hosts", str(error).partition(";")[0], remedy)
            return
    yield _resolve(hosts)


def _named(place: Place, variable: str) -> Path | None:
    return Path(place.env[variable]) if place.env.get(variable) else None


def world_of(place: Place) -> World | None:
    """Return the allocation; nothing when a file that should name its hosts is spoiled."""
    try:
        return find_world(place.env, place.own_host)
    except UserError:
        return None


def _elsewhere(place: Place) -> Iterator[Finding]:
    jobs = JobsElsewhere(lambda words: place.ask(words, _PATIENCE), place.user).all()
    for job in jobs[:3]:
        text = f"your {job.flavour} job {job.job_id} runs on {job.nhosts} other hosts"
        yield note("scheduler", text, f"ssh {job.head}, or `loom env load` what was saved there")


def _resolve(hosts: Sequence[str]) -> Finding:
    known = addresses(hosts[:_MANY], _LOOKUP)
    lost = [host for host in hosts[:_MANY] if not known.get(host)]
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        remedy = "mend the host file, or /etc/hosts and DNS here"
        return problem("hosts", f"no address for {shown}", remedy)
    return ok("hosts", f"{len(hosts)} hosts, all with an address")
