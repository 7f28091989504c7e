"""Convert a snapshot into rows and lines; knows nothing of the screen."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchloom.cli.monitor import answers
from torchloom.cli.monitor.poll import ScreenSnapshot
from torchloom.cli.monitor.widgets import Column, TableRow
from torchloom.cli.output import one_line, printable

Fact = Mapping[str, Any]

JOBS = (
    Column("JOB"),
    Column("STATE"),
    Column("STEP", True),
    Column("RANKS", True),
    Column("AGE", True),
    Column("REASON"),
)
RANKS = (
    Column("RANK", True),
    Column("STATE"),
    Column("STEP", True),
    Column("LAG", True),
    Column("STEP TIME", True),
    Column("NODE"),
)
WIDE_RANKS = (*RANKS, Column("REPLICA"), Column("PID", True), Column("DEVICES"))
EVENTS = (Column("TIME"), Column("EVENT"), Column("RANK", True), Column("WHAT"))
DEVICES = (Column("DEVICE"), Column("NODE"), Column("STATE"), Column("REASON"), Column("RANKS"))
_STATE, _LAG, _DEVICE_STATE = 1, 3, 2  # the cells that have tones

_TONES = {
    **dict.fromkeys(("RUNNING", "healthy"), "good"),
    **dict.fromkeys(("QUEUED", "starting", "evaluation", "checkpoint"), "busy"),
    **dict.fromkeys(("RECOVERING", "PAUSED", "suspect", "waiting", "draining"), "warn"),
    **dict.fromkeys(("FAILED", "failed", "lost"), "bad"),
    **dict.fromkeys(("COMPLETED", "CANCELLED", "gone", "ending"), "dim"),
}
_BAD_WORDS = ("lost", "gone", "fail", "kill", "nan", "error", "refused", "aborted")
_INTERMEDIATE = ("command_preparing", "command_committed")  # the outcome follows at once
_NAMES = {answers.STEP_SECONDS: "step time", "loom/device_memory": "device memory"}
_SOUGHT = ("state", "phase", "node", "replica", "role", "reason")
_FAR = 2  # steps behind that are worth a colour


def job_rows(seen: ScreenSnapshot) -> list[TableRow]:
    """Return jobs, newest first."""
    return [
        TableRow(job["id"], _clean(_job(job, seen)), _TONES.get(job["state"], ""))
        for job in seen.jobs
    ]


def _job(job: Fact, seen: ScreenSnapshot) -> tuple[str, ...]:
    up, total = seen.counts.get(job["id"], (0, 0))
    ranks = "-" if not total else str(total) if up == total else f"{up}/{total}"
    name = job["name"] if job["name"] and not job["id"].startswith(job["name"]) else ""
    text = " ".join(word for word in (name and f"({name})", job["reason"]) if word)
    return job["id"], job["state"], answers.step(job["step"]), ranks, answers.lasted(job), text


def rank_rows(ranks: Sequence[Fact], worst_first: bool, is_wide: bool) -> list[TableRow]:
    """Return ranks by number, or with problems first."""
    behind = answers.lags(ranks)
    rows = []
    for rank in ranks:
        lag = behind.get(rank["incarnation"])
        cells = answers.rank_cells(rank, lag)
        if is_wide:
            cells += rank["replica"], str(rank["pid"]), " ".join(rank["device_uuids"])
        tone, toned = _TONES.get(cells[_STATE], ""), _STATE
        if not tone and (lag or 0) >= _FAR:
            tone, toned = "warn", _LAG
        text = " ".join([cells[0], *map(str, map(rank.get, _SOUGHT)), *rank["device_uuids"]])
        order = (rank["state"] == "up", -(lag or 0)) if worst_first else ()
        rows.append(
            (order, TableRow(f"{rank['role']}/{rank['rank']}", _clean(cells), tone, toned, text))
        )
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def event_rows(events: Sequence[Fact]) -> list[TableRow]:
    """Return events, oldest first."""
    shown = [each for each in events if each["kind"] not in _INTERMEDIATE]
    return [
        TableRow(
            f"{each['from']}{each.get('seq', each.get('id'))}",
            _clean(cells),
            _weight(cells[_STATE]),
        )
        for each in shown
        for cells in (answers.event_cells(each),)
    ]


def _weight(kind: str) -> str:
    return "bad" if any(word in kind for word in _BAD_WORDS) else ""


def device_rows(devices: Sequence[Fact]) -> list[TableRow]:
    """Return all devices."""
    return [
        TableRow(
            each["uuid"],
            _clean((uuid, node, state, reason, ranks)),
            _TONES.get(state, ""),
            _DEVICE_STATE,
        )
        for each in devices
        for uuid, node, state, ranks, reason in (answers.device_cells(each),)
    ]


def matching(rows: Sequence[TableRow], text: str) -> list[TableRow]:
    """Return the rows that contain every word of a text; a number must match a whole word."""
    words = text.lower().split()
    return [row for row in rows if all(_has(row.text or " ".join(row.cells), w) for w in words)]


def _has(text: str, word: str) -> bool:
    text = text.lower()
    return word in text.split() if word.isdecimal() else word in text


def curve_lines(
    series: Sequence[Fact], width: int, height: int, first: int
) -> list[tuple[str, str]]:
    """Return the lines of the curves that fit, each with its style; `first` is on top."""
    known = {each["name"]: each for each in series if each["points"]}
    names = answers.ordered(known)
    names = names[first % len(names) :] + names[: first % len(names)] if names else []
    tall = max(1, min(5, height // max(1, len(names)) - 1))
    lines: list[tuple[str, str]] = []
    for name in names:
        points = known[name]["points"]
        values = [answers.as_float(point[2]) for point in points]
        lines.append((_title(known[name], values, width), "bold"))
        lines += [(line, "cyan") for line in answers.spark(values, width, tall)]
    return lines


def _title(curve: Fact, values: Sequence[float], width: int) -> str:
    name = printable(_NAMES.get(curve["name"], curve["name"].removeprefix("loom/")))
    last = answers.number(curve["name"], values[-1])
    where = f"rank {curve['rank']} step {curve['points'][-1][0]}"
    text = f"{name} {last}"
    if len(text) + len(where) + 2 > width:
        where = where.partition(" step ")[2]
    return f"{text}{where:>{max(0, width - len(text))}}"[:width]


def top_line(seen: ScreenSnapshot, now: str, width: int) -> str:
    """Return the first line: the status of the plane."""
    status = seen.status
    if not status:
        left, right = " torchLoom", now
    else:
        away = "" if status["connected"] else " · bus disconnected"
        counts = f"{status['jobs']} active · {status['ranks']} ranks · {status['agents']} agents"
        left = f" torchLoom  {status['host']} · {counts}{away}"
        right = f"epoch {status['epoch']}  {now}"
    left = left[: max(0, width - len(right) - 2)]
    return f"{left}{' ' * max(1, width - len(left) - len(right) - 1)}{right} "


def trouble_line(seen: ScreenSnapshot) -> str:
    """Return why the screen is not up to date."""
    if not seen.trouble:
        return ""
    since = "not up to date; " if seen.status else ""
    return f"{since}{one_line(seen.trouble, 300)}; retrying"


def ranks_title(seen: ScreenSnapshot, shown: int) -> str:
    """Return the title of the ranks pane."""
    if not seen.job:
        return "ranks"
    if shown != len(seen.ranks):
        return f"{printable(seen.job)}: {shown} of {len(seen.ranks)} shown"
    return f"{printable(seen.job)}: {answers.summary(seen.ranks)}"


def _clean(cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(printable, cells))
