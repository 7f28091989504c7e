"""Have checkpoints go: those that a job does not keep, and those that somebody wants gone."""

from dataclasses import replace
from typing import Any

from torchloom.rules import finite
from torchloom.rules.committing import Phase
from torchloom.rules.keeping import Saved, excess, sound, wishes_of
from torchloom.weaver.errands import Errands, Said
from torchloom.weaver.jobs import SAVING, Jobs, is_over
from torchloom.weaver.shelf import Shelf
from torchloom.weaver.store.rows import Checkpoint, Job

RESTORED = "restored"  # which step the present generation went on from
LOOM = "loom"  # the author of what nobody asked for


class Thinning:
    """Decide what goes, store it, have an agent do it."""

    def __init__(self, jobs: Jobs, shelf: Shelf, errands: Errands) -> None:
        self._jobs = jobs
        self._shelf = shelf
        self._errands = errands
        self._tainted: dict[str, set[int]] = {}  # steps saved when a loss was not finite, by job

    def remove(self, row: Checkpoint, author: str, reason: str) -> Checkpoint:
        """Have a checkpoint go: that it is to go is stored, then somebody is asked."""
        row = replace(row, author=author, reason=reason, changed_at=self._shelf.now())
        row = replace(row, state=str(Phase.REMOVING))
        self._shelf.put(row)
        self._errands.run(row)
        return row

    def held(self, job: Job) -> frozenset[int]:
        """Return the steps that must stay.

        The last committed, what the job went on from, and the last one from before a loss was not
        finite, until it is again.
        """
        rows = self._shelf.committed(job.id)
        last = max(rows, key=lambda row: row.committed_at or 0.0, default=None)
        restored = job.facts.get(RESTORED) or {}
        steps = {last.step, rows[0].step} if last else set()
        if not is_over(job) and restored.get("generation") == job.generation:
            steps.add(restored["step"])
        bad, tainted = finite.since(job.facts.get(finite.FACT) or {}), self._tainted.get(job.id)
        return sound((row.step for row in rows), bad, tainted or ()) | steps

    def taint(self, row: Checkpoint) -> None:
        """Know that a loss was not finite when this was saved, before its event has come."""
        self._tainted.setdefault(row.job, set()).add(row.step)

    def thin(self, row: Checkpoint) -> None:
        """Have those go that the job does not keep; only its present ranks say which."""
        job = self._jobs.get(row.job)
        if job is None or row.generation != job.generation:
            return
        rows = {each.step: each for each in self._shelf.committed(job.id)}
        saved = [Saved(each.step, each.metrics) for each in rows.values()]
        for step in excess(saved, wishes_of(job.facts.get(SAVING) or {}), self.held(job)):
            self.remove(rows[step], LOOM, "not among those that the job keeps")

    def removed(self, row: Checkpoint, said: Said) -> None:
        """Take in that one is gone: an agent removed it, or nobody sees its store any more."""
        if said.code not in ("", "not_seen"):
            return  # it is tried again
        gone = replace(row, state=str(Phase.REMOVED), changed_at=self._shelf.now())
        words = {"author": row.author, "reason": row.reason or said.why}
        facts = {**whose(row), "place": row.place}
        self._shelf.put(gone, "checkpoint_removed", **words, facts=facts)


def whose(row: Checkpoint) -> dict[str, Any]:
    """Return by whom a checkpoint was written, as every event of it says."""
    return {"generation": row.generation, "attempt": row.attempt}
