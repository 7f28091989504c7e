"""Mark the jobs that have a loss that is not finite, until it is finite again."""

import math

from torchloom.rules import divergence as rules
from torchloom.rules.divergence import FACT, Known, NonFiniteLoss
from torchloom.weaver.events import MetricsReceived, RankEventReported
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.journal import Journal
from torchloom.weaver.store.rows import JobRow

_LONGEST = 200  # letters of a name
_NAMES = 16  # losses of one job


class LossWatch:
    """Follows the losses that ranks report; metrics are read only where one is not finite."""

    def __init__(self, jobs: JobRegistry, journal: Journal) -> None:
        self._jobs = jobs
        self._journal = journal

    def on_rank_event(self, reported: RankEventReported) -> None:
        """Note that a loss of a rank is no longer finite."""
        rank, event = reported.rank, reported.event
        job = self._jobs.get(rank.job)
        if event.kind != "nan" or job is None or event.head.generation < job.generation:
            return
        name, at = str(event.facts.get("name"))[:_LONGEST], event.facts.get("at")
        known: Known = job.facts.get(FACT) or {}
        if name not in known and len(known) >= _NAMES:
            return
        seen = NonFiniteLoss(
            name,
            str(event.facts.get("value"))[:_LONGEST],
            rank.rank,
            event.step,
            at if type(at) is int else event.step,
            event.head.generation,
        )
        self._keep(job, rules.worse(known, seen), seen)

    def on_metrics(self, received: MetricsReceived) -> None:
        """Note which losses are finite again by the metrics of a rank."""
        metrics = received.metrics
        job = self._jobs.get(metrics.head.job)
        known: Known = (job.facts.get(FACT) or {}) if job is not None else {}
        if job is None or known.keys().isdisjoint(metrics.names):
            return
        for place, name in enumerate(metrics.names, 2):
            steps = [row[0] for row in metrics.rows if len(row) > place and _is_finite(row[place])]
            last = max((step for step in steps if isinstance(step, int)), default=None)
            if name in known and last is not None:
                head = metrics.head
                known = rules.better(known, name, head.rank, last, head.generation)
        self._keep(job, known)

    def _keep(self, job: JobRow, known: Known, seen: NonFiniteLoss | None = None) -> None:
        before = job.facts.get(FACT) or {}
        if known == before:
            return
        self._jobs.mark(job.id, {FACT: dict(known)})
        was, now = rules.words(before), rules.words(known)
        if seen is not None and was != now:
            reason = rules.words({seen.name: known[seen.name]})
            self._journal.note(
                "loss_not_finite", job.id, rank=seen.rank, step=seen.step, reason=reason
            )
        for name in before.keys() - known.keys():
            reason = f"{name} is finite again"
            self._journal.note("loss_finite", job.id, reason=reason, facts={"name": name})


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]
