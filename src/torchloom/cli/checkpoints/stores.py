"""Where a job's checkpoints are, and which of them a person means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchloom import settings
from torchloom.errors import NotFound, UserError, shorten

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage
    from torchloom.launch.records.record import RunRecord


@dataclass(frozen=True)
class Kept:
    """A job of this host and the store of its checkpoints."""

    record: "RunRecord"
    storage: "Storage"

    @property
    def job(self) -> str:
        return self.record.id

    def step(self, wanted: int | None) -> int:
        """Return the step that is meant: the one named, else the newest; it has a checkpoint."""
        steps = self.storage.committed()
        if wanted is None and steps:
            return steps[0]
        if wanted is None:
            raise UserError(f"{self.job} has no checkpoint yet; `loom checkpoint {self.job}` asks")
        if wanted not in steps:
            known = ", ".join(map(str, steps[:10])) or "none"
            raise NotFound("checkpoint of step", str(wanted), (), f"{self.job} has: {known}")
        return wanted


def kept(job: str, verb: str) -> Kept:
    """Return the store of a job; only where it is can it be read."""
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        raise chosen.NotElsewhere(f"`checkpoint {verb}`, which reads the store itself,")
    from torchloom.cli.account_runs import find_job_with_rights
    from torchloom.runner.naming import find_job

    find = find_job if verb == "rm" else find_job_with_rights  # rm asks the plane
    return of_record(find(job or None))


def of_record(record: "RunRecord") -> Kept:
    """Return the store of a run; a run of an older torchloom has none but in its own folder."""
    from torchloom.checkpoint import open_storage, root_of

    root = record.checkpoints or root_of("", record.id, settings.runs_dir())
    return Kept(record, open_storage(root, settings.environment()))


def job_and_steps(words: Sequence[str], most: int | None = None) -> tuple[str, list[int]]:
    """Read `[JOB] [STEP ...]`: a first word that is no number names the job."""
    job, steps = "", list(words)
    if steps and not steps[0].isdecimal():
        job = steps.pop(0)
    numbers = [step_named(word) for word in steps]
    if most is not None and len(numbers) > most:
        raise UserError(f"{steps[most]!r} is one step too many")
    return job, numbers


def step_named(word: str) -> int:
    """Return the step that a word is."""
    if not word.isdecimal() or len(word) > 19:
        raise UserError(f"{shorten(word)!r} is no step; write a number, as `checkpoint ls` has it")
    return int(word)


def size(count: int) -> str:
    """Return bytes as people read them: 812 B, 4.1 MB, 2.3 GB."""
    amount, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.3g} {unit}"
