"""Is this host fit to run ranks? One short module a topic; an ordered tuple of checks."""

from collections.abc import Callable, Sequence

from torchloom.doctor import cluster, folders, host, leftovers, software, variables
from torchloom.doctor.findings import Check, CheckFinding, CheckState, HostPlace

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", software.python),
    ("torch", software.torch),
    ("devices", host.accelerators),
    ("mpi", software.mpi),
    ("scheduler", cluster.scheduler),
    ("hosts", cluster.hostfile),
    ("ports", cluster.ports),
    ("dns", cluster.names),
    ("state", folders.home),
    ("runtime", folders.runtime),
    ("logs", folders.logs),
    ("shm", folders.shared_memory),
    ("disk", folders.disk),
    ("sizes", folders.sizes),
    ("limits", host.limits),
    ("clock", host.clock),
    ("variables", variables.misspelt),
    ("leftovers", leftovers.left),
)
SLOW: tuple[tuple[str, Check], ...] = (("backends", software.backends),)  # imports torch: seconds


__all__ = ["CHECKS", "Check", "CheckFinding", "HostPlace", "SLOW", "CheckState", "run_checks"]


def run_checks(
    place: HostPlace,
    checks: Sequence[tuple[str, Check]] = CHECKS + SLOW,
    on_start: Callable[[str], None] = lambda name: None,
) -> list[CheckFinding]:
    """Run the checks in order; `on_start` is called with the name of each before it runs."""
    found: list[CheckFinding] = []
    for name, check in checks:
        on_start(name)
        found += check(place)
    return found
