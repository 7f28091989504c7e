"""The logs of a job on a page: the newest lines that are wanted, then each as it is written.

The cursor has positions in the files, as in the API: a client resumes from there.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from torchloom.server.logs.lines import LEVELS, Output, OutputLine, ends_of, outputs_of, record_of
from torchloom.server.logs.patterns import PATIENCE, Budget, Patterns, checked
from torchloom.server.logs.search import CHUNK, LogQuery, LogSearch
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.payloads import StreamPayload, of_line
from torchloom.server.stream.sources import RANKS
from torchloom.server.stream.topics.socket_messages import PageWriter, Sub

_LOOKS = (1 << 18, 1 << 21, 1 << 24)  # bytes before the end that are searched, until it is enough
_MISSED = 1 << 21  # bytes that are sent line by line to a client that resumes
_LONGEST = 1 << 18  # letters of lines in one message: a page must be able to take it at once
_NEW = 1 << 16  # letters of new lines in one message: the server has them until a page reads them
_ROOM = 3800  # letters of what a page sends to come back, its cursor included
_KEYS = ("time", "rank", "role", "stream", "level", "message")

Ends = dict[str, int]


def ranks_of(access: PlaneAccess, job: str, sub: Sub) -> frozenset[int] | None:
    """Return whose lines are wanted; all are named where the stream would follow some of them."""
    if sub.ranks:
        return frozenset(sub.ranks)
    record = record_of(access.files(job), job)
    every = frozenset(rank.rank for rank in record.ranks) if record else frozenset()
    return every if len(every) > RANKS else None


class LogsShaper:
    """What one page has of a job's logs."""

    def __init__(
        self, access: PlaneAccess, writer: PageWriter, pool: Patterns, sub: Sub, job: str
    ) -> None:
        self._access = access
        self._writer = writer
        self._pool = pool
        self._sub = sub
        self._job = job
        self._ranks = frozenset(sub.ranks) if sub.ranks else None
        self._ends: Ends = {}  # the position of the page in each output

    async def begin(self, position: Position | None) -> Position | None:
        """Resume from a cursor, unless so much was missed that the newest lines suffice."""
        if self._sub.regex:
            await self._pool.search(checked(self._sub.regex), [], PATIENCE)  # whether it is one
        if position is None or position.logs is None:
            return None
        ours, ends = await self._access.read(_ends, self._access, self._job, self._ranks)
        missed = sum(ends[key] - position.logs.get(key, 0) for key in ours)
        if missed > _MISSED or any(position.logs.get(key, 0) > ends[key] for key in ours):
            return None
        self._ends = {key: position.logs.get(key, 0) for key in ours}
        return Position(logs=ends | self._ends)

    async def whole(self) -> None:
        """Send the newest lines, oldest first; `older` when there are others before them."""
        limit, budget = self._sub.limit, Budget()
        for size in _LOOKS:
            lines, self._ends, is_all = await self._access.read(
                _newest, self._access, self._job, self._ranks, size, self._sub.level
            )
            found, is_searched = await self._last(lines, budget)
            if is_all or len(found) > limit or not is_searched:
                break
        kept = _fitting(found[-limit:])
        items = [_item(of_line(line, self._job)) for line in kept]
        older = not is_all or not is_searched or len(found) > len(kept)
        self._writer.whole(self._sub.id, self._cursor(), {"items": items, "older": older})

    async def more(self, drafts: Sequence[StreamPayload], upto: Position, is_first: bool) -> None:
        """Say new lines, in as many messages as they take."""
        new = [draft for draft in drafts if self._is_new(draft)]
        for part in _parts(new) or ([],):
            for draft in part:
                self._ends.update(draft.move)
            grave = [draft for draft in part if self._is_grave(draft.body["level"])]
            matches = await self._matches([draft.body for draft in grave], Budget())
            items = [_item(grave[number]) for number in matches]
            if items or is_first:
                self._writer.more(self._sub.id, self._cursor(), {"items": items})
                await self._writer.sender.drained()

    async def _last(
        self, lines: Sequence[OutputLine], budget: Budget
    ) -> tuple[list[OutputLine], bool]:
        """Return the newest lines that match, one more than wanted; and whether time sufficed."""
        found: list[OutputLine] = []
        for end in range(len(lines), 0, -CHUNK):
            if len(found) > self._sub.limit:
                break
            if self._sub.regex and budget.left <= 0:
                return found, False
            part = lines[max(0, end - CHUNK) : end]
            shapes = [{"message": line.text} for line in part]
            found = [part[n] for n in await self._matches(shapes, budget)] + found
        return found, True

    async def _matches(self, shapes: Sequence[Mapping[str, Any]], budget: Budget) -> list[int]:
        if not self._sub.regex:
            return list(range(len(shapes)))
        texts = [shape["message"] for shape in shapes]
        return await self._pool.search(self._sub.regex, texts, budget.left)

    def _is_new(self, draft: StreamPayload) -> bool:
        return any(self._ends.get(key, 0) < end for key, end in draft.move.items())

    def _is_grave(self, level: str) -> bool:
        return not self._sub.level or LEVELS.index(level) >= LEVELS.index(self._sub.level)

    def _cursor(self) -> str:
        """Return the cursor of the page; none where it would be too long to send back."""
        text = str(Position(logs={key: end for key, end in self._ends.items() if end}))
        sub = msgspec.json.encode(msgspec.structs.replace(self._sub, after=text))
        return text if len(sub) <= _ROOM else ""


def _ends(access: PlaneAccess, job: str, ranks: Collection[int] | None) -> tuple[list[str], Ends]:
    """Return the outputs that are wanted, and where all outputs of a job end."""
    files = access.files(job)
    record = record_of(files, job)
    wanted = [output.key for output in outputs_of(record, ranks)]
    return wanted, ends_of(outputs_of(record, account=files.account))


def _newest(
    access: PlaneAccess, job: str, ranks: Collection[int] | None, size: int, level: str
) -> tuple[list[OutputLine], Ends, bool]:
    """Return lines of the last bytes of all outputs, where they end, and whether these are all."""
    files = access.files(job)
    record = record_of(files, job)
    outputs = outputs_of(record, ranks, files.account)
    share = size // max(1, len(outputs))
    starts = {output.key: _line_within(output, share) for output in outputs}
    is_over = record is not None and record.truth().is_over()
    search = LogSearch(outputs, starts, LogQuery(level), is_over)
    lines = search.take(size)  # there are not as many lines as bytes
    return lines, search.positions, not any(starts.values())


def _line_within(output: Output, size: int) -> int:
    """Return where the first line begins that lies within the last bytes of an output."""
    try:
        with output.open() as file:
            start = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(max(0, start - 1))
            return start - 1 + len(file.readline()) if start else 0
    except FileNotFoundError:
        return 0


def _fitting(lines: Sequence[OutputLine]) -> Sequence[OutputLine]:
    """Return the newest lines that one message holds."""
    room, count = _LONGEST, 0
    for line in reversed(lines):
        room -= len(line.text)
        if room < 0:
            break
        count += 1
    return lines[len(lines) - count :]


def _parts(drafts: Sequence[StreamPayload]) -> list[list[StreamPayload]]:
    """Return drafts in parts that a message holds, and a search looks at."""
    parts: list[list[StreamPayload]] = []
    room = 0
    for draft in drafts:
        size = len(draft.body["message"])
        if not parts or size > room or len(parts[-1]) == CHUNK:
            parts.append([])
            room = _NEW
        room -= size
        parts[-1].append(draft)
    return parts


def _item(draft: StreamPayload) -> dict[str, Any]:
    """Return a line as the API does, and a key that no other line of the job has."""
    (output,) = draft.move
    shape = {name: draft.body[name] for name in _KEYS}
    return {"key": f"{output}:{draft.body['seq']}", **shape}
