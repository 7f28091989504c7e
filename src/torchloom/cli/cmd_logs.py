"""`loom logs`: print or follow the logs of some or all ranks."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import click

from torchloom.cli.relay import label
from torchloom.errors import NotFound, UserError
from torchloom.launch.logreader import Span, Tail, lines
from torchloom.launch.record import RankRecord, Record
from torchloom.runner.naming import find_job

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.command("logs")
@click.argument("job", required=False)
@click.option("-f", "-t", "--follow", "--tail", is_flag=True, help="Go on as the job does.")
@click.option("--ranks", metavar="0,2-3", help="Only these ranks.")
@click.option("--role", help="Only this role.")
@click.option("--regex", help="Only lines in which this is found.")
@click.option("--since", metavar="TIME", help="From then on: 10m, 2h, or 2026-01-31T12:00.")
@click.option("--until", metavar="TIME", help="Up to then.")
@click.option(
    "--stream",
    "--streams",
    type=click.Choice(["stdout", "stderr", "combined"]),
    default="combined",
    help="Which output; default both together.",
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N lines of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
def command(
    job: str | None,
    follow: bool,
    ranks: str | None,
    role: str | None,
    regex: str | None,
    since: str | None,
    until: str | None,
    stream: str,
    last: int | None,
    as_json: bool,
) -> None:
    """Print the logs of JOB, or of some of it: JOB/ROLE or JOB/ROLE/0,1 for its replicas."""
    record, chosen = _choose(job, role, ranks)
    span = Span(instant(since), instant(until))
    tails = [Tail(record.log_path(rank), stream, span) for rank in chosen]
    names = label(chosen) if len(record.ranks) > 1 else [""] * len(chosen)
    wait = _wait(record, span) if follow else None
    _check_regex(regex)
    if as_json:
        _print_json(chosen, tails, regex, stream)
    elif last is not None and not follow:
        for tail, name in zip(tails, names, strict=True):
            _print(deque(lines([tail], [name], regex), maxlen=last))
    else:
        _print(lines(tails, names, regex, wait))


def _choose(
    job: str | None, role: str | None, ranks: str | None
) -> tuple[Record, list[RankRecord]]:
    """Return the record and the ranks that are meant; TorchX writes them into the handle."""
    record, place = _find(job)
    parts = place.split("/") if place else []
    if len(parts) > 2:
        raise UserError(f"{job!r} has too many parts; write JOB, JOB/ROLE or JOB/ROLE/0,1")
    role = parts[0] if parts else role
    roles = list(dict.fromkeys(rank.role for rank in record.ranks))
    if role and role not in roles:
        raise NotFound("role", role, roles, f"{record.id} has: {', '.join(roles)}")
    replicas = numbers(parts[1]) if len(parts) > 1 else None
    wanted = numbers(ranks) if ranks else None
    chosen = [
        rank
        for rank in record.ranks
        if (not role or rank.role == role)
        and (replicas is None or rank.replica in replicas)
        and (wanted is None or rank.rank in wanted)
    ]
    if not chosen:
        last = max(rank.rank for rank in record.ranks)
        raise NotFound("rank", ranks or place, (), f"{record.id} has ranks 0 to {last}")
    return record, chosen


def _find(job: str | None) -> tuple[Record, str]:
    """Split JOB from /ROLE/REPLICAS; a handle has slashes of its own."""
    if job is None or "/" not in job:
        return find_job(job), ""
    start = 0
    if "://" in job:
        start = job.index("/", job.index("://") + 3) + 1
    name, _, place = job[start:].partition("/")
    return find_job(job[:start] + name), place


def numbers(text: str) -> set[int]:
    """Read `0,2-3` as {0, 2, 3}."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not match:
            raise UserError(f"{text!r} is no list of numbers; write 0,2 or 0-3")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def instant(text: str | None) -> datetime | None:
    """Read a time: `10m` ago, or a date and time, which is local unless it says otherwise."""
    if text is None:
        return None
    if match := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise UserError(f"no time {text!r}; write 30s, 10m, 2h, 1d or 2026-01-31T12:00") from error


def _wait(record: Record, span: Span):  # type: ignore[no-untyped-def]
    """Return what `lines` sleeps with: over when the job is, or when `--until` has passed."""
    guard = record.guard

    def wait(pause: float) -> bool:
        over = guard is None or guard.wait_exit(pause)
        return over or (span.until is not None and datetime.now(UTC) > span.until)

    return wait


def _check_regex(regex: str | None) -> None:
    try:
        re.compile(regex or "")
    except re.error as error:
        raise UserError(f"--regex {regex!r}: {error}") from error


def _print(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo(text, nl=not text.endswith("\n"))


def _print_json(ranks: list[RankRecord], tails: list[Tail], regex: str | None, stream: str) -> None:
    for rank, tail in zip(ranks, tails, strict=True):
        for text in _texts(tail, regex):
            place = {"role": rank.role, "replica": rank.replica, "rank": rank.rank}
            click.echo(json.dumps({**place, "stream": stream, "line": text}))


def _texts(tail: Tail, regex: str | None) -> Iterator[str]:
    return (text.removesuffix("\n") for text in lines([tail], None, regex))
