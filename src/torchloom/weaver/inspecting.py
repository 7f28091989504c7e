"""The answer to `stacks`: what a job's ranks do now, or what was kept of one that has ended."""

import asyncio
import time
from typing import Any

from torchloom.weaver import shapes
from torchloom.weaver.jobs import is_over
from torchloom.weaver.naming import job_named
from torchloom.weaver.question import Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Happening, Job
from torchloom.weaver.verdicts import role_shape

_MOST = 1000  # events of a job that are looked through


class Inspecting:
    """Look closely at a job."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def stacks(self, asked: Question) -> dict[str, Any]:
        """Stacks of every rank and the verdict on them, by role; fresh ones while the job runs."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        if is_over(job):
            return await self._kept(job)
        ranks = self._weaver.roster.ranks(job.id)
        roles = sorted({rank.role for rank in ranks if rank.state == "up"})
        found = await asyncio.gather(*(self._weaver.hangs.look((job.id, role)) for role in roles))
        return {
            "job": job.id,
            "taken": "now",
            "time": shapes.when(time.time()),
            "roles": [role_shape(evidence) for evidence in found],
        }

    async def _kept(self, job: Job) -> dict[str, Any]:
        """Return the last verdict on each role, with the stacks that it rested on."""
        state = self._weaver.store.state
        events = await self._weaver.aside(state.last_happened, job.id, _MOST)
        last = {event.facts["role"]: event for event in events if event.kind == "verdict"}
        at = max((event.time for event in last.values()), default=None)
        roles = [_role(event) for _, event in sorted(last.items())]
        return {"job": job.id, "taken": "kept", "time": shapes.when(at), "roles": roles}


def _role(event: Happening) -> dict[str, Any]:
    names = ("culprits", "awaited", "kind", "words")
    verdict = {name: event.facts[name] for name in names}
    stacks = event.facts["stacks"]
    return {"role": event.facts["role"], "verdict": verdict, "stacks": stacks, "ranks": []}
