"""Read new data of jobs between two positions, by time; all reads block."""

import contextlib
import heapq
import importlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.server.logs.lines import Files, Output, ends_of, merged, outputs_of, record_of
from torchloom.server.stream.payloads import (
    ReaderPosition,
    StreamPayload,
    of_event,
    of_line,
    of_rank_event,
    of_segments,
)
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import RankProcessRow
from torchloom.weaver.store.series import curves
from torchloom.weaver.views import when

_NVML = "pynvml"  # of the package nvidia-ml-py, which may find no driver
RANKS = 64  # whose logs are read where a client names none
_PAGE = 1000  # events that are read at a time
_POINTS = 20_000  # points that are read at a time
_LINES = 2000  # lines that are read at a time


class Meters:
    """Measure the resources of ranks since the last call; one thread at a time."""

    def __init__(self) -> None:
        self._processes: dict[str, psutil.Process] = {}
        self._nvml = _nvml()

    def measure(
        self, job: str, ranks: Iterable[RankProcessRow], now: float | None = None
    ) -> list[StreamPayload]:
        """Return the usage of each rank of a job on this host."""
        at = time.time() if now is None else now
        found = []
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                if (process := self._process(rank)) is not None:
                    found.append(_draft(job, rank, at, self._usage(process, rank.devices)))
        return found

    def _process(self, rank: RankProcessRow) -> psutil.Process | None:
        """Return the very process that registered as this rank, if it is one of this host."""
        here = ProcessIdentity.of(rank.pid)
        if here is None or here.started != str(rank.started):
            self._processes.pop(rank.incarnation, None)
            return None
        if rank.incarnation not in self._processes:
            process = self._processes[rank.incarnation] = psutil.Process(rank.pid)
            process.cpu_percent(None)  # from now on
        return self._processes[rank.incarnation]

    def _usage(self, process: psutil.Process, devices: Iterable[str]) -> dict[str, Any]:
        with process.oneshot():
            cpu, memory = process.cpu_percent(None), process.memory_info().rss
        gpus = [usage for uuid in devices if (usage := self._gpu(uuid)) is not None]
        return {"cpu": cpu, "memory": memory, "gpu": gpus}

    def _gpu(self, uuid: str) -> dict[str, Any] | None:
        nvml = self._nvml
        if nvml is None or not uuid.startswith("GPU-"):
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except nvml.NVMLError:
            return None
        return {"uuid": uuid, "busy": float(busy), "memory": int(memory)}


def _draft(job: str, rank: RankProcessRow, at: float, usage: dict[str, Any]) -> StreamPayload:
    body = {
        "type": "resource",
        **usage,
        "seq": int(at * 1000),
        "time": when(at),
        "rank": rank.rank,
        "role": rank.role,
        "node": rank.node,
        "job": job,
    }
    return StreamPayload(job, "resource", rank.rank, at, body, {})


def _nvml() -> Any:
    try:
        nvml = importlib.import_module(_NVML)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, no GPUs
        return None
    return nvml


@dataclass(frozen=True, slots=True)
class FoundPayloads:
    """What was read, by time, up to a position; there may be more."""

    drafts: list[StreamPayload]
    upto: ReaderPosition
    is_all: bool


class Sources:
    """Events and metrics of both databases; safe in several threads."""

    def __init__(self, store: PlaneReader) -> None:
        self._store = store

    def now(self) -> ReaderPosition:
        """Return the position behind everything that is stored."""
        happened = self._store.state.last_happened(limit=1)
        reported = self._store.records.last_events(limit=1)
        arrived = curves.news(self._store.records).next
        return ReaderPosition(
            happened[-1].seq if happened else 0, reported[-1].id if reported else 0, arrived
        )

    def news(self, at: ReaderPosition, jobs: Collection[str]) -> FoundPayloads:
        """Return new data of some jobs."""
        happened = self._store.state.happened(None, at.happened, _PAGE)
        reported = self._store.records.events(None, at.reported, _PAGE)
        points = curves.news(self._store.records, at.arrived, jobs, _POINTS)
        ways = [
            (of_event(row) for row in happened if row.job in jobs),
            (of_rank_event(row) for row in reported if row.job in jobs),
            of_segments(points.segments),
        ]
        upto = ReaderPosition(
            happened[-1].seq if happened else at.happened,
            reported[-1].id if reported else at.reported,
            max(points.next, at.arrived),
        )
        count = sum(len(segment.steps) for segment in points.segments)
        is_all = len(happened) < _PAGE and len(reported) < _PAGE and count < _POINTS
        return FoundPayloads(_by_time(ways), upto, is_all)

    def between(self, job: str, at: ReaderPosition, goal: ReaderPosition) -> FoundPayloads:
        """Return a page of one job's data between two positions."""
        happened = self._store.state.happened(job, at.happened, _PAGE)
        reported = self._store.records.events(job, at.reported, _PAGE)
        points = curves.news(self._store.records, at.arrived, [job], _POINTS)
        metrics = list(_behind(at.row, of_segments(points.segments)))
        if points.is_whole:
            metrics = [draft for draft in metrics if draft.body["seq"] <= goal.arrived]
        ways = [
            (of_event(row) for row in happened if row.seq <= goal.happened),
            (of_rank_event(row) for row in reported if row.id <= goal.reported),
            metrics,
        ]
        is_end = not points.segments or points.next >= goal.arrived
        upto = ReaderPosition(
            _upto([row.seq for row in happened], goal.happened),
            _upto([row.id for row in reported], goal.reported),
            max(goal.arrived, at.arrived) if is_end else points.next,
        )
        is_all = is_end and (upto.happened, upto.reported) == (goal.happened, goal.reported)
        return FoundPayloads(_by_time(ways), upto, is_all)


class LogSource:
    """The logs of one job: of its first ranks, and of those that a client has named."""

    def __init__(self, files: Files, job: str) -> None:
        self._files = files
        self._job = job
        self._ranks: set[int] = set(range(RANKS))
        self.outputs: list[Output] = []
        self._is_over = False

    def refresh(self, ranks: Collection[int] = ()) -> None:
        """Read which outputs there are, and whether the job is over."""
        self._ranks |= set(ranks)
        record = record_of(self._files, self._job)
        self.outputs = outputs_of(record, self._ranks, self._files.account)
        self._is_over = record is not None and record.truth().is_over()

    def follows(self, ranks: Collection[int]) -> bool:
        """Return whether the logs of these ranks are read."""
        return self._ranks.issuperset(ranks)

    def ends(self) -> dict[str, int]:
        """Return where the outputs end now."""
        return ends_of(self.outputs)

    def news(self, at: dict[str, int]) -> list[StreamPayload]:
        """Return the lines since some places, at most a few thousand."""
        lines = merged(self.outputs, at, self._is_over)
        return [of_line(line, self._job) for line, _ in zip(lines, range(_LINES), strict=False)]

    def between(self, at: dict[str, int], goal: dict[str, int]) -> tuple[list[StreamPayload], bool]:
        """Return the lines from here to there, or the first of them, and whether these are all."""
        known = [output for output in self.outputs if at.get(output.key, 0) < goal[output.key]]
        found: list[StreamPayload] = []
        for line in merged(known, at, self._is_over):
            if line.end <= goal[line.output.key]:
                found.append(of_line(line, self._job))
            if len(found) == _LINES:
                return found, False
        return found, True


def _by_time(ways: Sequence[Iterable[StreamPayload]]) -> list[StreamPayload]:
    """Return payloads by time; those of one source keep their order."""
    return list(heapq.merge(*ways, key=lambda draft: draft.time))


def _upto(numbers: list[int], goal: int) -> int:
    """Return the position after a read: the end of a full page, else the goal."""
    return min(numbers[-1], goal) if len(numbers) == _PAGE else goal


def _behind(row: int, drafts: Iterator[StreamPayload]) -> Iterator[StreamPayload]:
    """Leave out the payloads of the first transaction that were sent before."""
    first = None
    for draft in drafts:
        first = draft.body["seq"] if first is None else first
        if draft.body["seq"] == first and row > 0:
            row -= 1
            continue
        yield draft
