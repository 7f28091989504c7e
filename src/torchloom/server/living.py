"""Jobs as they are shown: what the weaver knows of those that live, the database of the others."""

from collections.abc import Sequence
from typing import Any, Protocol

from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState
from torchloom.weaver import views
from torchloom.weaver.store.rows import JobRow

_WORLD_SIZE = "world_size"  # among the facts of a job


class Asker(Protocol):
    """Whoever reaches the weaver."""

    async def ask(self, name: str, /, **facts: Any) -> Any: ...


def shape(row: JobRow) -> dict[str, Any]:
    """Return a job as the database has it."""
    return views.job_shape(row, row.step, row.facts.get(_WORLD_SIZE))


async def living(weaver: Asker, rows: Sequence[JobRow]) -> list[dict[str, Any]]:
    """Return jobs as they are; how far those that run are, only the weaver knows."""
    active = [row.id for row in rows if not JobState(row.state).is_final]
    known: dict[str, dict[str, Any]] = {}
    if active:
        try:
            found = await weaver.ask("jobs", active=True, ids=active)
            known = {one["id"]: one for one in found}
        except WeaverAway:
            pass  # the database knows the rest
    return [known.get(row.id) or shape(row) for row in rows]
