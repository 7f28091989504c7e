"""The errors of a run's ranks, and which came first; output of hosts without our log folder."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

from torchloom.launch.logs.files import ErrorFile, LogFiles, first_error
from torchloom.launch.protocol import RankOutput, RankOutputEnd, RankProcessReport
from torchloom.rules.recovery import CRASH_LOOP
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import Place

_TRACEBACK = "Traceback (most recent call last)"
_STDERR = "stderr.log"
_LAST_LINES = 8  # of a rank that has left no traceback
_LONGEST = 16_384  # letters of a message or a traceback that a status holds


@dataclass(frozen=True, slots=True)
class Broken:
    """A rank that failed, and the error that it left."""

    place: Place
    rank: int
    attempt: int
    cause: str
    report: ErrorFile | None = None
    printed: str = ""  # a traceback
    tail: str = ""  # the last lines of a rank that has left neither
    is_killed: bool = False  # by another process: what it had printed before is not why
    seen: float = field(default_factory=time.time)


class RankErrors:
    """The errors of a run's ranks, the evidence against its nodes, and outputs sent from afar."""

    def __init__(self, log_dir: str, is_resumed: bool = False) -> None:
        """If `is_resumed`, what earlier incarnations have printed is no error of this one."""
        self._log_dir = Path(log_dir)
        found = self._log_dir.rglob(_STDERR) if is_resumed else ()
        self._printed = {path.parent: path.stat().st_size for path in found}
        self._broken: list[Broken] = []
        self._starts: list[list[Broken]] = [self._broken]  # a new one at every restart
        self._evidence: dict[str, str] = {}  # of lost nodes, by the reason of the end they may be
        self._logs: dict[str, LogFiles] = {}

    def failed(self, place: Place, number: int, rank: RankProcessReport, cause: str) -> None:
        """Keep the error file of a rank, here too when it was written elsewhere."""
        report = ErrorFile(*rank.error) if rank.error else None
        is_killed = rank.code == -signal.SIGKILL
        text = "" if report else self._printed_by(rank)
        printed = "" if is_killed else _last_traceback(text)
        tail = "" if report or printed else "\n".join(text.splitlines()[-_LAST_LINES:])
        self._broken.append(
            Broken(place, number, rank.attempt, cause, report, printed, tail, is_killed)
        )
        if report and rank.logs:
            with contextlib.suppress(OSError):
                (self._log_dir / rank.logs / "error.json").write_text(report.text)

    def ended(self, rank: RankProcessReport) -> None:
        """Take note of how much a rank has printed: what follows is of the next incarnation."""
        logs = Path(rank.directory)
        with contextlib.suppress(OSError):
            self._printed[logs] = (logs / _STDERR).stat().st_size

    def _printed_by(self, rank: RankProcessReport) -> str:
        """Return the end of what the last incarnation of a rank has printed.

        On a terminal of its own it has no stderr, all is stdout.
        """
        logs = Path(rank.directory)
        for name, printed in ((_STDERR, self._printed.get(logs, 0)), ("stdout.log", 0)):
            with contextlib.suppress(OSError), open(logs / name, "rb") as file:
                file.seek(max(printed, file.seek(0, os.SEEK_END) - _LONGEST))
                if text := file.read().decode(errors="replace"):
                    return text
        return ""

    def begin_again(self) -> None:
        """Ranks start again: earlier errors are not those of the new incarnations."""
        if self._broken:
            self._broken = []
            self._starts.append(self._broken)

    def began_with(self, reason: str) -> None:
        """Forget the errors before that of the reason: their ranks were replaced."""
        found = [number for number, one in enumerate(self._broken) if one.cause == reason]
        if found:
            del self._broken[: found[-1]]

    def node_lost(self, name: str, evidence: str) -> None:
        self._evidence[f"node_lost_{name}"] = f"{name}: {evidence}"

    def first(self, reason: str) -> str | None:
        """Return what went wrong first; on a lost node's account its peers fail only later."""
        if reason in self._evidence:
            return self._evidence[reason]
        found = self._first(reason)
        return found.report.text if found and found.report else None

    def error_summary(self, reason: str) -> dict[str, Any]:
        """Return the first error by time as a status shows it; nothing when there is none."""
        found = self._first(reason)
        if reason in self._evidence or found is None:
            words = self._evidence.get(reason)
            return {"rank": None, "message": words, "traceback": ""} if words else {}
        message, traceback = _words(found)
        return {
            "rank": found.rank,
            "role": found.place[0],
            "attempt": found.attempt,
            "message": message[:_LONGEST],
            "traceback": traceback[-_LONGEST:],
            "last_lines": found.tail,
            "time": found.report.written if found.report else found.seen,
        }

    def _first(self, reason: str) -> Broken | None:
        """Return the first failure: of the last restart that has one, or of all in a crash loop.

        A killed rank comes first: its peers fail only because of it.
        """
        starts = self._starts if reason.startswith(CRASH_LOOP) else self._starts[::-1]
        for start in starts:
            if killed := [one for one in start if one.is_killed and reason.endswith(one.cause)]:
                return killed[0]
            if found := _with_report(start) or next((one for one in start if one.printed), None):
                return found
        return next((start[0] for start in starts if start), None)

    def output(self, message: RankOutput) -> None:
        """Write down what a rank of another host printed."""
        self._log(message.logs).write(message.stream, message.data.encode("latin-1", "replace"))

    def output_end(self, message: RankOutputEnd) -> None:
        self._log(message.logs).close()

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def _log(self, logs: str) -> LogFiles:
        if logs not in self._logs:
            self._logs[logs] = LogFiles(self._log_dir / logs)
        return self._logs[logs]


def _with_report(start: Iterable[Broken]) -> Broken | None:
    """Return the failure with the earliest error file."""
    texts = [each for each in start if each.report]
    first = first_error(each.report for each in texts)
    return next((each for each in texts if each.report and each.report.text == first), None)


def _words(broken: Broken) -> tuple[str, str]:
    """Return message and traceback of a failed rank."""
    if broken.is_killed and not broken.report:
        return f"rank {broken.rank} was killed (SIGKILL)", ""
    return _opened(broken.report) if broken.report else (broken.cause, broken.printed)


def _last_traceback(text: str) -> str:
    """Return the traceback in what a rank has printed, if there is one."""
    _, head, rest = text.rpartition(_TRACEBACK)
    return head + rest if head else ""


def _opened(report: ErrorFile) -> tuple[str, str]:
    """Return the message and the traceback of an error file; of unknown shape, its text."""
    try:
        said = json.loads(report.text)["message"]
        if isinstance(said, str):
            return said, ""
        return str(said["message"]), str((said.get("extraInfo") or {}).get("py_callstack") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return report.text, ""
