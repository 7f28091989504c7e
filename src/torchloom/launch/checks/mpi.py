"""Which MPI launchers are on PATH, and whose they are."""

import shutil
from collections.abc import Iterator
from subprocess import SubprocessError

from torchloom.launch.assembly import mpiexec_kind
from torchloom.launch.checks.finding import Finding, Place, note, ok, why

_PATIENCE = 15.0
_WHOSE = {"mpirun": "Open MPI", "mpich": "MPICH", "pals": "PALS"}


def mpi(place: Place) -> Iterator[Finding]:
    """Ask `mpiexec`, else `mpirun`, for its version; none is no fault."""
    path = place.env.get("PATH")
    for name in ("mpiexec", "mpirun"):
        if shutil.which(name, path=path):
            yield _look(place, name)
            return
    yield ok("mpi", "none on PATH; only --launcher mpiexec and mpirun need it")


def _look(place: Place, name: str) -> Finding:
    try:
        version = place.ask([name, "--version"], _PATIENCE)
    except (OSError, SubprocessError) as error:
        remedy = "mend it, take it off PATH, or launch with --launcher ssh"
        return note("mpi", f"{name} --version: {why(error)}", remedy)
    first = next(iter(version.strip().splitlines()), "").strip()
    whose = _WHOSE[mpiexec_kind(version)]
    return ok("mpi", f"{name} of {whose}" + (f" ({first})" if first else ""))
