"""Is this host fit to run ranks? One short module a topic; an ordered tuple of checks."""

from collections.abc import Callable, Sequence

from torchloom.launch.checks import (
    accelerators,
    allocation,
    backends,
    folders,
    interpreter,
    leftovers,
    limits,
    mpi,
    network,
    sizes,
)
from torchloom.launch.checks.finding import Check, Finding, Place, State

__all__ = ["CHECKS", "Check", "Finding", "Place", "SLOW", "State", "look"]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", interpreter.python),
    ("torch", interpreter.torch),
    ("devices", accelerators.accelerators),
    ("mpi", mpi.mpi),
    ("scheduler", allocation.scheduler),
    ("hosts", allocation.hostfile),
    ("ports", network.ports),
    ("dns", network.names),
    ("state", folders.home),
    ("runtime", folders.runtime),
    ("logs", folders.logs),
    ("shm", folders.shared_memory),
    ("disk", folders.disk),
    ("sizes", sizes.sizes),
    ("limits", limits.limits),
    ("clock", limits.clock),
    ("leftovers", leftovers.left),
)
SLOW: tuple[tuple[str, Check], ...] = (("backends", backends.backends),)  # imports torch: seconds


def look(
    place: Place,
    checks: Sequence[tuple[str, Check]] = CHECKS + SLOW,
    tell: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Take one look after the other; `tell` hears of each before it is taken."""
    found: list[Finding] = []
    for name, check in checks:
        tell(name)
        found += check(place)
    return found
