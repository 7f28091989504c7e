"""`loom chaos`: inject faults into a running job and check its guarantees."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.output import echo, echo_json, say, table
from torchloom.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchloom.chaos.plan import Fault
    from torchloom.chaos.record import Strike
    from torchloom.chaos.targets import Victim

_FAULTS = 10  # default number of faults
_HEADS = ("KIND", "DOES", "NEEDS", "LASTS", "ONLY WITH")


@click.command(
    "chaos",
    cls=LoomCommand,
    epilog=examples(
        "loom chaos gpt --mtbf 5s --faults 3",
        "loom chaos gpt --plan faults.yaml -o report.json",
        "loom chaos --kinds help",
    ),
)
@click.argument("job", required=False)
@click.option(
    "--plan",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the plan from FILE.",
)
@click.option("--mtbf", metavar="TIME", help="Draw random faults at this mean interval, e.g. 5s.")
@click.option("--kinds", metavar="K,..", help="Kinds of faults; default kill; `help` lists them.")
@click.option("--seed", type=int, metavar="N", help="Seed of the random faults.")
@click.option("--link", "links", multiple=True, metavar="[NETNS/]IFACE", help="Link to disturb.")
@click.option("--faults", type=Number(1), metavar="N", help="Number of faults; default 10.")
@click.option("--for", "span", metavar="TIME", help="Inject faults for this long, e.g. 2m.")
@click.option("--limit", metavar="TIME", default="120s", help="Recovery time limit; default 120s.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also compare with the step digests in DIR.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to FILE.",
)
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Print the plan as YAML and exit.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def command(**options: Any) -> int:
    """Inject faults into JOB, from a plan or at random, and check its guarantees.

    Exits with 1 if a guarantee is broken, with 3 if none is broken but some could not be checked.
    Works on your own jobs on this host. Lasting faults are undone, even if this command is killed.
    """
    if options["kinds"] == "help":
        return _list_kinds()
    _check(options)
    from torchloom.chaos import targets
    from torchloom.chaos.faults import actions

    victim = targets.find(options["job"])
    plan, seed = _planned(options, victim)
    if options["dry"]:
        return _show(plan)
    actions.check(plan, victim)
    _confirm(victim, plan, options["yes"])
    return _run(victim, plan, seed, options)


def _list_kinds() -> int:
    from torchloom.chaos.faults.kinds import table_rows

    echo(table(_HEADS, table_rows()))
    return 0


def _check(options: dict[str, Any]) -> None:
    """Refuse options that contradict each other."""
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        raise chosen.NotElsewhere("`chaos`")
    drawing = [name for name in ("mtbf", "kinds", "seed", "links") if options[name]]
    if options["path"] and drawing:
        raise UserError(f"--plan cannot be combined with --{drawing[0].removesuffix('s')}")
    if not options["path"] and not options["mtbf"]:
        raise UserError("give --plan FILE, or --mtbf 5s for random faults")
    if options["faults"] and options["span"]:
        raise UserError("--faults and --for exclude each other")
    if options["dry"] and options["as_json"]:
        raise UserError("--dryrun prints YAML for --plan; it cannot be combined with --json")


def _planned(options: dict[str, Any], victim: "Victim") -> "tuple[tuple[Fault, ...], int | None]":
    """Return the plan, from a file or at random, cut to --for and --faults."""
    from torchloom.chaos import plan
    from torchloom.chaos.faults.kinds import kinds_of

    until = plan.seconds(options["span"], "--for") if options["span"] else float("inf")
    most = options["faults"] or (plan.MOST if options["span"] or options["path"] else _FAULTS)
    if options["path"]:
        faults = plan.read(_text(options["path"]), str(options["path"]))
        return tuple(one for one in faults if one.at <= until)[:most], None
    mean = plan.seconds(options["mtbf"], "--mtbf")
    if mean <= 0:
        raise UserError("--mtbf is 0; write a time like 5s")
    seed = options["seed"] if options["seed"] is not None else int.from_bytes(os.urandom(4))
    kinds, ranks = kinds_of(options["kinds"] or "kill"), sorted(victim.ranks())
    if not ranks:
        raise UserError(
            f"no rank of {victim.job} runs on this host; wait until its ranks have started, or run"
            " `loom chaos` on their host"
        )
    return plan.draw(seed, mean, kinds, ranks, most, until, options["links"]), seed


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the plan {path}: {why}") from None


def _show(plan: "tuple[Fault, ...]") -> int:
    import yaml

    for fault in plan:
        echo(
            f"- {yaml.safe_dump(fault.to_dict(), default_flow_style=True, sort_keys=False).strip()}"
        )
    return 0


def _confirm(victim: "Victim", plan: "tuple[Fault, ...]", yes: bool) -> None:
    if not plan:
        raise UserError("the plan has no faults; give it more time or a smaller --mtbf")
    if not yes and sys.stdin.isatty():
        kinds = ", ".join(dict.fromkeys(fault.kind for fault in plan))
        click.confirm(f"inject {len(plan)} faults into {victim.job} ({kinds})?", abort=True)


def _run(
    victim: "Victim", plan: "tuple[Fault, ...]", seed: int | None, options: dict[str, Any]
) -> int:
    from torchloom import settings
    from torchloom.chaos import report
    from torchloom.chaos.checker import judgement
    from torchloom.chaos.plan import seconds
    from torchloom.chaos.record import SeriesHead
    from torchloom.chaos.series import FaultSeries, alone
    from torchloom.chaos.undo import Guardian

    job, limit = victim.job, seconds(options["limit"], "--limit")
    faults = tuple(fault.to_dict() for fault in plan)
    head = SeriesHead(os.urandom(6).hex(), job, seed, time.time(), len(plan), faults)
    with alone(victim), _logged(victim, head.chaos) as (log, no_log):
        place = options["against"], settings.environment(), _api(), log, no_log
        judge = judgement.opened(job, victim.folder, *place)
        until = seconds(options["span"], "--for") if options["span"] else float("inf")
        with Guardian(victim.folder):
            show = (lambda _: None) if options["as_json"] else _show_strike
            chaos = FaultSeries(victim, plan, judge, head, limit, until, show).run()
        found = judge.end(chaos)
    _hand_over(found, options, report.lines)
    return report.EXIT_CODES[found["verdict"]]


@contextlib.contextmanager
def _logged(victim: "Victim", name: str) -> "Iterator[tuple[Path | None, str]]":
    """Switch the step digest log of the ranks on during a series, unless it is on already.

    Yields its folder, or why there is none.
    """
    from torchloom import settings
    from torchloom.chaos.checker.case import digests_of

    if digests_of(victim.folder, settings.environment()) is not None:
        yield None, ""
        return
    with victim.logged(f"digests-{name}") as why:
        yield victim.folder / f"digests-{name}", why


def _api() -> str:
    """Return the URL of the plane's HTTP server; empty if it has none."""
    from torchloom.client import plane

    url = str((plane.find() or {}).get("url", ""))
    return url if url.startswith("http") else ""


def _show_strike(strike: "Strike") -> None:
    """Print the progress of one fault."""
    target = strike.target
    what = f"{target.what} {target.rank}" if target and target.rank is not None else ""
    what = what or (f"{target.what} {target.name}".strip() if target else "")
    how = strike.why or strike.outcome
    if strike.recovered_at is not None and strike.struck_at is not None:
        how = f"recovered after {strike.recovered_at - strike.struck_at:.2f} s"
    elif strike.undone_at is not None:
        how = "undone"
    say(f"{strike.planned_at:8.1f} s  {strike.kind} {what}: {how}")


def _hand_over(
    found: "Mapping[str, Any]",
    options: dict[str, Any],
    lines: "Callable[[Mapping[str, Any]], Iterator[str]]",
) -> None:
    if options["output"]:
        options["output"].write_text(json.dumps(found, indent=2) + "\n")
    if options["as_json"]:
        echo_json(found)
    else:
        for line in lines(found):
            echo(line)
