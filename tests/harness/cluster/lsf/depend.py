"""`-w`: which jobs must start or end first."""

import re
from collections.abc import Sequence

from ..batch.job import Job
from .jobs import find
from .words import BAD_DEPEND, NO_MATCH, not_done, not_submitted

KINDS = {"done": "afterok", "ended": "afterany", "exit": "afternotok", "started": "after"}
CONDITION = re.compile(r"(?:([a-z]+)\(\s*)?(?:(\d+)|\"([^\"]+)\"|([A-Za-z]\w*))(\s*\))?")


def dependencies(text: str, jobs: Sequence[Job]) -> list[tuple[str, list[str]]]:
    """Return `done(12) && ended("name")` as kinds and keys of jobs."""
    if "||" in text or "!" in text:
        raise not_done("bsub", f"-w {text}")
    found = []
    for part in text.split("&&"):
        match = CONDITION.fullmatch(part.strip())
        if not match or bool(match[1]) != bool(match[5]) or (match[1] or "done") not in KINDS:
            raise not_submitted(f"{text}: {BAD_DEPEND}")
        others = _named(match[2], match[3] or match[4], jobs)
        if not others:
            raise not_submitted(f"{match[2] or match[3] or match[4]}: {NO_MATCH}")
        found.append((KINDS[match[1] or "done"], [job.key for job in others]))
    return found


def _named(number: str | None, name: str | None, jobs: Sequence[Job]) -> list[Job]:
    if number:
        return find(number, jobs)
    last = max((job.number for job in jobs if job.name == name), default=None)
    return [job for job in jobs if job.number == last]
