"""`loom logs`: print or follow the logs of some or all ranks."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import click

from torchloom.cli.account_runs import find_job_with_rights
from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs import engine
from torchloom.cli.jobs.logs import JsonLogLines, LastLines, NamedLines, label
from torchloom.errors import Failure, NotFound, UserError, shorten
from torchloom.launch.logs.reader import STATES, Span, Tail, Wait, ending, lines
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.runner.job_lookup import JobWithoutRun, is_of_the_queue
from torchloom.schedulers.local_scheduler import create_scheduler

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class LogsCommand(LoomCommand):
    """A command whose `--tail` is TorchX's: it follows, and takes no number of lines."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word, following in pairwise([*args, ""]):
            flag, _, value = word.partition("=")
            number = value or following
            if flag == "--tail" and number.isdecimal() and catalog.record(number) is None:
                remedy = f"write `--last {shorten(number)}` for the last lines of each rank"
                raise UserError(f"--tail is the same as -f; {remedy}")
        return super().parse_args(ctx, args)


@click.command(
    "logs",
    cls=LogsCommand,
    epilog=examples(
        "loom logs -f gpt",
        "loom logs gpt --ranks 0,2 --since 10m --regex loss",
        "loom logs gpt/trainer/0 --last 50",
    ),
)
@click.argument("job", required=False)
@click.option("-f", "-t", "--follow", "--tail", is_flag=True, help="Follow until the job ends.")
@click.option("--ranks", metavar="0,2-3", help="Only these ranks.")
@click.option("--role", metavar="ROLE", help="Only this role.")
@click.option("--regex", metavar="REGEX", help="Only matching lines.")
@click.option("--since", metavar="TIME", help="Start: 10m or 2h ago, or 2026-01-31T12:00.")
@click.option("--until", metavar="TIME", help="End, in the same format.")
@click.option(
    "--stream",
    "--streams",
    type=click.Choice(["stdout", "stderr", "combined"]),
    default="combined",
    metavar="STREAM",
    help="stdout or stderr; default both.",
)
@click.option("--last", type=Number(1), metavar="N", help="Only the last N lines of each rank.")
@click.option("--raw", is_flag=True, help="Print carriage returns and terminal escapes unchanged.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
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
    raw: bool,
    as_json: bool,
) -> None:
    """Print the logs of JOB, of one role (JOB/ROLE) or of some replicas (JOB/ROLE/0,1).

    Only the last state of a progress bar is printed; with -f, one state per second.
    """
    seconds = None if raw else STATES if follow else math.inf
    span = Span(instant(since), instant(until))
    _check_regex(regex)
    meant, parts = _split(job)
    handle = engine.handle_of(meant)
    begun = engine.begun(handle, follow) if handle is not None else None
    if handle is not None and begun is None:
        wanted = numbers(parts[1]) if len(parts) > 1 else None
        place = (parts[0] if parts else role, lambda replica: _is_in(replica, wanted))
        when = (span.since, span.until)
        engine.logs(handle, *place, follow, regex, *when, stream, seconds)
        return
    record = begun[0] if begun else _find(meant)
    chosen = _choose(record, parts, role, ranks)
    tails = [Tail(record.log_path(rank), stream, span) for rank in chosen]
    names = label(chosen) if len(record.ranks) > 1 else [""] * len(chosen)
    printer = LastLines(JsonLogLines(chosen, stream) if as_json else NamedLines(names), last, raw)
    over = ending(begun[1], span.until) if begun else _wait(record, span)
    wait = printer.waiting(over) if follow else None
    for line in lines(tails, printer.keys(len(tails)), regex, wait, seconds):
        printer.take(line)
    printer.release()


class NoLogs(Failure):
    """The job exists but has not run."""

    code = "no_logs"


def _choose(
    record: RunRecord, parts: Sequence[str], role: str | None, ranks: str | None
) -> list[RankRecord]:
    """Return the selected ranks, from the options or from TorchX's form of the handle."""
    role = parts[0] if parts else role
    roles = list(dict.fromkeys(rank.role for rank in record.ranks))
    if role and role not in roles:
        raise NotFound("role", role, roles, f"{record.id} has: {', '.join(roles)}")
    mine = [rank for rank in record.ranks if not role or rank.role == role]
    replicas = numbers(parts[1]) if len(parts) > 1 else None
    wanted = numbers(ranks) if ranks is not None else None
    chosen = [rank for rank in mine if _is_in(rank.replica, replicas) and _is_in(rank.rank, wanted)]
    if not chosen:
        what, numbered = ("rank", [r.rank for r in mine])
        if replicas is not None:
            what, numbered = ("replica", [r.replica for r in mine])
        asked = ranks if ranks is not None else "/".join(parts)
        raise NotFound(what, asked, (), f"{record.id} has 0 to {max(numbered)}")
    return chosen


def _split(job: str | None) -> tuple[str | None, list[str]]:
    """Split JOB from /ROLE/REPLICAS; a handle contains slashes itself."""
    backend, scheme, rest = (job or "").rpartition("://")
    session, slash, place = rest.partition("/") if scheme else ("", "", rest)
    name, *parts = place.split("/")
    if len(parts) > 2:
        form = "write JOB, JOB/ROLE or JOB/ROLE/0,1"
        raise UserError(f"{shorten(job or '')!r} has too many parts; {form}")
    return job and f"{backend}{scheme}{session}{slash}{name}", parts


def _find(meant: str | None) -> RunRecord:
    """Return the run of a job."""
    try:
        return find_job_with_rights(meant)
    except JobWithoutRun as error:
        if not is_of_the_queue(error.job):
            raise
        state, why = error.job["state"], error.job["reason"]
        raise NoLogs(f"{error.job['id']} has no logs: it is {state}, {why}") from None


def numbers(text: str) -> list[range]:
    """Parse `0,2-3` as the numbers 0 and 2 to 3."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not match:
            raise UserError(f"{shorten(text)!r} is not a list of numbers; write 0,2 or 0-3")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _is_in(number: int, ranges: Sequence[range] | None) -> bool:
    return ranges is None or any(number in one for one in ranges)


def instant(text: str | None) -> datetime | None:
    """Parse a time: `10m` ago, or a date and time, local unless it has a zone."""
    if text is None:
        return None
    try:
        if match := re.fullmatch(r"(\d{1,9})([smhd])", text):
            return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        form = "write 30s, 10m, 2h, 1d or 2026-01-31T12:00"
        raise UserError(f"{shorten(text)!r} is not a time; {form}") from error


def _wait(record: RunRecord, span: Span) -> Wait:
    """Return a wait function for `lines`: true when the job has ended or `--until` has passed."""
    scheduler = create_scheduler(record.session)

    def wait(pause: float) -> bool:
        over = scheduler.wait(record.id, pause)
        return over or (span.until is not None and datetime.now(UTC) > span.until)

    return wait


def _check_regex(regex: str | None) -> None:
    try:
        re.compile(regex or "")
    except re.error as error:
        raise UserError(f"--regex {shorten(regex or '')!r}: {error}") from error
