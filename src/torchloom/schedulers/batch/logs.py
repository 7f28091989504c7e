"""The logs of a job whose ranks run on other hosts: the run's own files, on the shared folder."""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from torchloom.errors import NotFound
from torchloom.launch.logs import reader
from torchloom.launch.logs.reader import Span, Tail, Wait
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import all_folders
from torchloom.launch.records.record import RunRecord
from torchloom.schedulers.batch.index import IndexEntry
from torchloom.schedulers.batch.script import OUTPUT

_POLL = 0.25  # seconds between checks for a run that has not begun
_TASKS = 1.0  # seconds between checks for tasks of an array that have begun meanwhile

IsOver = Callable[[], bool]


def lines(
    entry: IndexEntry,
    places: Sequence[tuple[str, int]],
    is_over: IsOver,
    follow: bool = False,
    regex: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    stream: str = "combined",
    labelled: bool = False,
    seconds: float | None = None,
) -> Iterator[str]:
    """Yield the lines of some replicas, all by one reader; a job that never ran has its script's.

    With `follow` they come as they are written, over restarts and requeues, until it is over.
    """
    for role, index in places:
        _check(entry, role, index)
    open_ones = _Open(entry.run_id, places, stream, Span(since, until))
    open_ones.add(begun(entry.run_id, is_over) if follow else records(entry.run_id))
    if not open_ones.tails:
        yield from _output(entry, regex, since)
        return
    wait = reader.ending(open_ones.growing(is_over), until) if follow else None
    named = labelled or len(open_ones.tails) > 1 or open_ones.is_array
    labels = open_ones.labels if named else None
    yield from reader.lines(open_ones.tails, labels, regex, wait, seconds)


class _Open:
    """The logs of a job's ranks; those of an array's tasks join as the tasks begin."""

    def __init__(
        self, run_id: str, places: Sequence[tuple[str, int]], stream: str, span: Span
    ) -> None:
        self.tails: list[Tail] = []
        self.labels: list[str] = []
        self._run_id = run_id
        self._places = places
        self._stream = stream
        self._span = span
        self._tasks: set[str] = set()
        self._looked_at = time.monotonic()

    @property
    def is_array(self) -> bool:
        return bool(self._tasks - {""})

    def add(self, found: Mapping[str, RunRecord]) -> None:
        """Open the logs of tasks, or of the one run there is."""
        for task, record in found.items():
            self._tasks.add(task)
            for rank in record.ranks:
                if (rank.role, rank.replica) in self._places:
                    self.tails.append(Tail(record.log_path(rank), self._stream, self._span))
                    self.labels.append(f"[{f'task{task} ' if task else ''}rank{rank.rank}]: ")

    def growing(self, is_over: IsOver) -> Wait:
        """Return what a reader sleeps with; meanwhile tasks that have begun are found."""
        sleep = waiting(is_over)

        def wait(pause: float) -> bool:
            over = sleep(pause)
            if self.is_array and (over or time.monotonic() - self._looked_at > _TASKS):
                self._looked_at = time.monotonic()
                self.add(records(self._run_id, self._tasks))
            return over

        return wait


def records(run_id: str, but: Collection[str] = ()) -> dict[str, RunRecord]:
    """Return the run of a job, or those of an array's tasks by their numbers; none have begun yet.

    Only those with ranks count: before, there is nothing to read.
    """
    if (one := catalog.record(run_id)) is not None:
        return {"": one} if one.ranks else {}
    tasks = re.compile(re.escape(run_id) + r"-([0-9]+)")
    names = [name for folder in all_folders() if (name := tasks.fullmatch(folder.app_id))]
    found = {name[1]: catalog.record(name[0]) for name in names if name[1] not in but}
    known = {task: record for task, record in found.items() if record and record.ranks}
    return dict(sorted(known.items(), key=lambda pair: int(pair[0])))


def _check(entry: IndexEntry, role: str, index: int) -> None:
    if role not in entry.replicas:
        known = ", ".join(entry.replicas)
        raise NotFound("role", role, entry.replicas, f"{entry.run_id} has: {known}")
    if not 0 <= index < entry.replicas[role]:
        most = entry.replicas[role] - 1
        raise NotFound("replica", f"{role}/{index}", remedy=f"{role} has replicas 0 to {most}")


def begun(run_id: str, is_over: IsOver) -> dict[str, RunRecord]:
    """Return what has begun once anything has; nothing when it ended without."""
    while True:
        over = is_over()
        if (found := records(run_id)) or over:
            return found
        time.sleep(_POLL)


def waiting(is_over: IsOver) -> Wait:
    """Return what a reader sleeps with until a job is over."""

    def wait(pause: float) -> bool:
        time.sleep(pause)
        return is_over()

    return wait


def _output(entry: IndexEntry, regex: str | None, since: datetime | None) -> Iterator[str]:
    """Yield what the script itself printed: why nothing came of it. It has no times but its own."""
    wanted = re.compile(regex or "")
    for path in sorted(Path(entry.folder).glob(f"{OUTPUT}*")):
        if since is None or path.stat().st_mtime >= since.timestamp():
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from (line for line in file if wanted.search(line))
