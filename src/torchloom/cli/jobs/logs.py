"""Print the output of a running job: one rank's bytes unchanged, several ranks' lines by name."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from torchloom.cli import site
from torchloom.cli.output import say, write_as_is
from torchloom.launch.logs.display import Display
from torchloom.launch.logs.files import STREAMS
from torchloom.launch.logs.reader import STATES, Span, Tail, Wait, WholeLines, chunks
from torchloom.launch.records.record import RankRecord, RunRecord

if TYPE_CHECKING:
    from torchloom.launch.hosts.sites import NoiseFilter

_BETWEEN = ":"  # after the number of a line's source


class Shape(Protocol):
    """Formats one line of one source."""

    def __call__(self, source: int, text: str) -> str: ...


class NamedLines:
    """Prefixes each line with the name of its rank."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, source: int, text: str) -> str:
        return f"{self._names[source]}{text}"


class JsonLogLines:
    """Formats each line as a JSON object."""

    def __init__(self, ranks: Sequence[RankRecord], stream: str) -> None:
        self._heads = [
            {"role": rank.role, "replica": rank.replica, "rank": rank.rank, "stream": stream}
            for rank in ranks
        ]

    def __call__(self, source: int, text: str) -> str:
        return json.dumps({**self._heads[source], "line": text})


class LastLines:
    """Prints lines as they arrive; with a limit, only the last lines of the existing logs."""

    def __init__(self, shape: Shape, last: int | None, raw: bool = False) -> None:
        self._shape = shape
        self._raw = raw
        self._last = last
        self._held: dict[int, deque[str]] = {}
        self._caught_up = last is None

    def keys(self, sources: int) -> list[str]:
        """Return the prefix of each source's lines that `take` expects."""
        return [f"{source}{_BETWEEN}" for source in range(sources)]

    def take(self, line: str) -> None:
        """Print a line, or hold it back."""
        source, _, text = line.removesuffix("\n").partition(_BETWEEN)
        if self._caught_up:
            self._print(int(source), text)
        else:
            held = self._held.setdefault(int(source), deque(maxlen=self._last))
            held.append(text)

    def release(self) -> None:
        """Print the lines held back; later lines are printed at once."""
        for source in sorted(self._held):
            for text in self._held[source]:
                self._print(source, text)
        self._held.clear()
        self._caught_up = True
        sys.stdout.flush()

    def waiting(self, wait: Wait) -> Callable[[float], bool]:
        """Return `wait` for a following reader: a reader that waits has caught up."""

        def release_and_wait(pause: float) -> bool:
            self.release()
            return wait(pause)

        return release_and_wait

    def _print(self, source: int, text: str) -> None:
        line = self._shape(source, text)
        if self._raw:
            write_as_is(f"{line}\n")
            return
        is_left_coloured = "\x1b[" in line and sys.stdout.isatty()
        sys.stdout.write(f"{line}\x1b[0m\n" if is_left_coloured else f"{line}\n")


def relay_logs(
    record: RunRecord,
    plain: bool,
    wait: Wait,
    show: Display | None = None,
    since: datetime | None = None,
) -> None:
    """Copy the job's output until it ends; a component's goes to stderr, as in TorchX.

    `show` selects ranks and prefixes; with it, the site's known noise is hidden and counted at the
    end. `since` hides the output of earlier attempts. Progress bars of several ranks are printed
    as whole lines, once a second and at the end; that of a single rank rewrites its line.
    """
    noise = site.noise() if show is not None else None
    before = _labels(record, plain) if show is None else _chosen(record, show)
    names = {source: text.encode() for source, text in before.items() if text is not None}
    sources = list(names)
    places = [(record.log_path(record.ranks[index]), stream) for index, stream in sources]
    tails = [Tail(*place, Span(since)) for place in places]
    partial = dict.fromkeys(sources, b"")
    is_torn = len({index for index, _ in sources}) > 1  # a terminal's line may be two ranks'
    whole = {source: WholeLines(STATES) for source in sources if names[source] and is_torn}
    for which, data in chunks(tails, wait):
        source = sources[which]
        if source in whole:
            lines = [line + b"\n" for line in whole[source].take(data)]
            data = _dressed(names[source], lines, noise)
        elif names[source] or noise:
            lines, partial[source] = split_lines(partial[source] + data)
            data = _dressed(names[source], lines, noise)
        _write(_target(source, plain), data)
    partial |= {source: b"".join(maker.end()) for source, maker in whole.items()}
    for source, rest in partial.items():
        if rest:
            end = b"\n" if names[source] else b""
            _write(_target(source, plain), _dressed(names[source], [rest + end], noise))
    if noise and noise.note:
        say(noise.note)


_Source = tuple[int, str]  # a rank's place in the record, and the stream


def _labels(record: RunRecord, plain: bool) -> dict[_Source, str | None]:
    labels = [""] if plain and len(record.ranks) == 1 else label(record.ranks)
    return {(index, stream): text for index, text in enumerate(labels) for stream in STREAMS}


def _chosen(record: RunRecord, show: Display) -> dict[_Source, str | None]:
    return {
        (index, stream): show.before(stream, rank.role, rank.rank, rank.local_rank)
        for index, rank in enumerate(record.ranks)
        for stream in STREAMS
    }


def _dressed(name: bytes, lines: Sequence[bytes], noise: "NoiseFilter | None") -> bytes:
    return b"".join(name + line for line in lines if noise is None or noise.keeps(line))


def _target(source: _Source, plain: bool) -> int:
    return 1 if plain and source[1] == "stdout" else 2


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete lines with their endings, and the rest.

    A progress bar ends its lines with \\r; a trailing \\r may still become \\r\\n.
    """
    lines = data.splitlines(keepends=True)
    rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
    return lines, rest


def label(ranks: Sequence[RankRecord]) -> list[str]:
    """Return the prefix of each rank's lines: `[rank3]: `, or `[trainer0]: ` by its role."""
    groups = {rank.role for rank in ranks if _is_of_group(rank)}
    return [f"[{_name(rank, len(groups) > 1)}]: " for rank in ranks]


def _name(rank: RankRecord, several_groups: bool) -> str:
    if not _is_of_group(rank):
        return f"{rank.role}{rank.replica}"
    return f"{rank.role}.rank{rank.rank}" if several_groups else f"rank{rank.rank}"


def _is_of_group(rank: RankRecord) -> bool:
    """Tell whether a replica may have several ranks: then its logs are one level deeper."""
    return rank.logs.count("/") > 1


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
