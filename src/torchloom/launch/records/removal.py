"""Remove what is no longer kept of ended runs: in one step as others see it, then at leisure."""

import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, StateNotWritable
from torchloom.launch.records.record import RunRecord
from torchloom.rules.retention import EndedRun, Removal, RetentionLimits, due

DUMPS = "dumps"  # in a run's folder: what was written down of processes that got stuck
_GONE = ".rm-"


def known_runs() -> list[EndedRun]:
    """Return every run of this state folder that may be shown."""
    return [known(record) for record in catalog.everything()]


def known(record: RunRecord) -> EndedRun:
    """Return a run by its own record; one whose end has no time ended when it was made."""
    ended = _seconds(record.ended_at or record.created_at)
    return EndedRun(record.id, record.is_over(), ended, record.name, parent=record.parent)


def carry_out(limits: RetentionLimits, dry: bool) -> list[dict[str, Any]]:
    """Have go what is due of the runs' folders; the databases are their weaver's to clear."""
    acts = {"run": remove_run, "logs": remove_logs, "dumps": remove_dumps}
    found: list[dict[str, Any]] = []
    for one in due(limits, known_runs(), time.time()):
        if one.what not in acts or not is_there(one):
            continue
        row: dict[str, Any] = {
            "kind": one.what,
            "job": one.job,
            "done": False,
            "text": "would remove",
        }
        if not dry:
            try:
                row |= {"done": acts[one.what](one.job), "text": "removed"}
            except StateNotWritable as error:
                row |= {"text": str(error)}
        found.append(row)
    return found


def is_there(one: Removal) -> bool:
    """Tell whether there is anything of what is to go."""
    record = catalog.record(one.job)
    if record is None:
        return False
    if one.what == "dumps":
        return (RunFolder.named(one.job).path / DUMPS).is_dir()
    logs = _logs_of(record)
    return one.what != "logs" or (logs is not None and logs.is_dir())


def remove_run(job: str) -> bool:
    """Remove a run's folder whole; false when there is none, or it runs."""
    record = catalog.record(job)
    if record is None or not record.is_over():
        return False
    folder = RunFolder.named(job)
    outside = _logs_of(record)
    folder.remove()
    if outside is not None and not outside.is_relative_to(folder.path):
        _remove(outside)
    return True


def remove_logs(job: str) -> bool:
    """Remove the logs of a run that is over; false when there are none."""
    record = catalog.record(job)
    logs = _logs_of(record) if record is not None and record.is_over() else None
    return logs is not None and _remove(logs)


def remove_dumps(job: str) -> bool:
    """Remove what was written down of a run's processes; false when there is nothing."""
    record = catalog.record(job)
    if record is None or not record.is_over():
        return False
    return _remove(RunFolder.named(job).path / DUMPS)


def _logs_of(record: RunRecord) -> Path | None:
    """Return a run's own folder of logs; one that may hold those of others is not."""
    logs, own = Path(record.log_dir), RunFolder.named(record.id).path
    return logs if logs == own / "logs" or logs.name == record.id else None


def _remove(folder: Path) -> bool:
    """Remove a folder, and what an earlier removal of it was kept from finishing."""
    hidden = folder.with_name(f"{_GONE}{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        folder.rename(hidden)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateNotWritable(folder.parent, error) from error
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _seconds(instant: str) -> float | None:
    """Return a time that a record has; of one that cannot be read nothing is known, so it stays."""
    try:
        return datetime.fromisoformat(instant).timestamp()
    except ValueError:
        return None
