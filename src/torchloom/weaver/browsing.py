"""Answers at the door about runs: a list to search, one of them, several compared."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from torchloom.weaver import comparing, runs
from torchloom.weaver.naming import job_named
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import RecordStore, curves

_MOST = 1000  # runs of one page
_MOST_BUCKETS = 10_000  # of one curve


class Browsing:
    """Look at runs, beside the loop."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def experiments(self, asked: Question) -> dict[str, Any]:
        """A page of runs, newest first."""
        search = runs.Search(
            text=asked.text("text"),
            owner=asked.text("owner"),
            project=asked.text("project"),
            group=asked.text("group"),
            tag=asked.text("tag"),
            commit=asked.text("commit"),
            states=tuple(sorted(asked.texts("states") or ())),
            where=tuple(sorted(asked.texts("where") or ())),
        )
        limit, cursor = asked.count("limit", 100, _MOST), asked.text("cursor")
        store = self._weaver.store
        return await self._weaver.aside(runs.listed, store, search, limit, cursor)

    async def experiment(self, asked: Question) -> dict[str, Any]:
        """One run, whole."""
        return await self._weaver.aside(
            runs.shown, self._weaver.store, self._run(asked.text("run"))
        )

    async def compare(self, asked: Question) -> dict[str, Any]:
        """How runs differ, in the order in which they are named."""
        names = asked.facts.get("runs")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadQuestion("runs must be a list of names")
        found = [self._run(name) for name in names[: comparing.MOST + 1]]
        return await self._weaver.aside(comparing.compared, self._weaver.store, found)

    async def curves(self, asked: Question) -> dict[str, Any]:
        """Whole curves in few buckets: of the metrics named or all, of the lowest rank or all."""
        job, names = job_named(self._weaver.jobs, asked.text("job")), asked.texts("names")
        buckets = max(1, asked.count("buckets", 1000, _MOST_BUCKETS))
        records, whole = self._weaver.store.records, asked.flag("all_ranks")
        found = await self._weaver.aside(_curves, records, job.id, names, whole, buckets)
        return {"job": job.id, **found}

    def _run(self, name: str) -> str:
        return job_named(self._weaver.jobs, name).run_id


def _curves(
    records: RecordStore, job: str, names: Collection[str] | None, whole: bool, buckets: int
) -> dict[str, Any]:
    series = curves.series(records, job)
    lowest: dict[str, int] = {}
    for one in series:
        lowest[one.name] = min(one.rank, lowest.get(one.name, one.rank))
    ranks = None if whole else set(lowest.values())
    found = curves.curves(records, job, names, ranks, buckets=buckets)
    shown = [_plain(one) for one in found if whole or one.rank == lowest[one.name]]
    return {"names": sorted(lowest), "curves": shown}


def _plain(curve: curves.Curve) -> dict[str, Any]:
    values = ((field.name, getattr(curve, field.name)) for field in fields(curve))
    return {name: value if isinstance(value, str | int) else list(value) for name, value in values}
