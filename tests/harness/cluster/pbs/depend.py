"""`-W depend=`: which jobs must start or end first."""

import re
from collections.abc import Sequence

from ..batch.job import Job
from .jobs import find
from .words import BADDEPEND, Rejected, not_done

TAKEN = ("after", "afterok", "afternotok", "afterany")
KNOWN = (*TAKEN, "before", "beforeok", "beforenotok", "beforeany", "on", "runone")


def dependencies(text: str, jobs: Sequence[Job]) -> list[tuple[str, list[str]]]:
    """Return `type:jobid[:jobid ...][,type:...]` as kinds and the keys of jobs."""
    found = []
    for part in filter(None, text.split(",")):
        kind, *identifiers = part.split(":")
        if kind not in KNOWN or not identifiers or not all(identifiers):
            raise Rejected(BADDEPEND)
        if kind not in TAKEN:
            raise not_done("qsub", f"-W depend={kind}")
        keys = []
        for identifier in identifiers:
            if not find(identifier, jobs):
                raise Rejected(BADDEPEND)
            keys.append(re.split(r"[.@]", identifier)[0])
        found.append((kind, keys))
    return found
