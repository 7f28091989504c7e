"""The logs of a job whose ranks run on other hosts: the run's own files, on the shared folder."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from torchloom.errors import NotFound
from torchloom.launch import catalog, logreader
from torchloom.launch.folder import all_folders
from torchloom.launch.logreader import Span, Tail, Wait
from torchloom.launch.record import Record
from torchloom.schedulers.batch.index import Entry
from torchloom.schedulers.batch.request import OUTPUT

_LOOK = 0.25  # seconds between looks for a run that has not begun

IsOver = Callable[[], bool]


def lines(
    entry: Entry,
    places: Sequence[tuple[str, int]],
    is_over: IsOver,
    follow: bool = False,
    regex: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    stream: str = "combined",
    labelled: bool = False,
) -> Iterator[str]:
    """Yield the lines of some replicas, all by one reader; a job that never ran has its script's.

    With `follow` they come as they are written, over restarts and requeues, until it is over.
    """
    for role, index in places:
        _check(entry, role, index)
    found = begun(entry.run_id, is_over) if follow else records(entry.run_id)
    ranks = [
        (task, record, rank)
        for task, record in found.items()
        for rank in record.ranks
        if (rank.role, rank.replica) in places
    ]
    if not ranks:
        yield from _output(entry, regex, since)
        return
    tails = [Tail(run.log_path(rank), stream, Span(since, until)) for _, run, rank in ranks]
    labels = [f"[{f'task{task} ' if task else ''}rank{rank.rank}]: " for task, _, rank in ranks]
    wait = logreader.ending(waiting(is_over), until) if follow else None
    named = labels if labelled or len(ranks) > 1 else None
    yield from logreader.lines(tails, named, regex, wait)


def records(run_id: str) -> dict[str, Record]:
    """Return the run of a job, or those of an array's tasks by their numbers; none have begun yet.

    Only those with ranks count: before, there is nothing to read.
    """
    if (one := catalog.record(run_id)) is not None:
        return {"": one} if one.ranks else {}
    tasks = re.compile(re.escape(run_id) + r"-([0-9]+)")
    names = [name for folder in all_folders() if (name := tasks.fullmatch(folder.app_id))]
    found = {name[1]: catalog.record(name[0]) for name in names}
    known = {task: record for task, record in found.items() if record and record.ranks}
    return dict(sorted(known.items(), key=lambda pair: int(pair[0])))


def _check(entry: Entry, role: str, index: int) -> None:
    if role not in entry.replicas:
        known = ", ".join(entry.replicas)
        raise NotFound("role", role, entry.replicas, f"{entry.run_id} has: {known}")
    if not 0 <= index < entry.replicas[role]:
        most = entry.replicas[role] - 1
        raise NotFound("replica", f"{role}/{index}", remedy=f"{role} has replicas 0 to {most}")


def begun(run_id: str, is_over: IsOver) -> dict[str, Record]:
    """Return what has begun once anything has; nothing when it ended without."""
    while True:
        over = is_over()
        if (found := records(run_id)) or over:
            return found
        time.sleep(_LOOK)


def waiting(is_over: IsOver) -> Wait:
    """Return what a reader sleeps with until a job is over."""

    def wait(pause: float) -> bool:
        time.sleep(pause)
        return is_over()

    return wait


def _output(entry: Entry, regex: str | None, since: datetime | None) -> Iterator[str]:
    """Yield what the script itself printed: why nothing came of it. It has no times but its own."""
    wanted = re.compile(regex or "")
    for path in sorted(Path(entry.folder).glob(f"{OUTPUT}*")):
        if since is None or path.stat().st_mtime >= since.timestamp():
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from (line for line in file if wanted.search(line))
