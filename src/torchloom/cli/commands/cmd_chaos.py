"""`loom chaos`: hurt a running job on purpose, and see whether it keeps its promises."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import echo, echo_json, say, table
from torchloom.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchloom.chaos.plan import Fault
    from torchloom.chaos.record import Strike
    from torchloom.chaos.targets import Victim

_FAULTS = 10  # where nobody says how many, or for how long
_HEADS = ("KIND", "DOES", "NEEDS", "LASTS", "ONLY WITH")


@click.command("chaos", cls=LoomCommand)
@click.argument("job", required=False)
@click.option("--plan", "path", type=click.Path(path_type=Path), metavar="FILE", help="Follow it.")
@click.option("--mtbf", metavar="TIME", help="Draw a plan: mean time between faults, as 5s.")
@click.option("--kinds", metavar="K,..", help="Kinds to draw from; default kill. `help` lists.")
@click.option("--seed", type=int, help="The same seed draws the same plan.")
@click.option("--link", "links", multiple=True, metavar="[NETNS/]IFACE", help="That may be hit.")
@click.option("--faults", type=Number(1), metavar="N", help="So many; default 10.")
@click.option("--for", "span", metavar="TIME", help="For so long, as 2m.")
@click.option("--limit", metavar="TIME", default="120s", help="For the job to recover; 120s.")
@click.option("--against", type=click.Path(path_type=Path), metavar="DIR", help="A calm ledger.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The report.")
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Only print the plan, as YAML.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one object.")
def command(**options: Any) -> int:
    """Hurt JOB: by a plan, or by one that is drawn from a seed.

    Exit 1 if a promise is broken, 3 if none is, but some are unknown.
    Only your own jobs, on this host; what lasts is undone, also when this is killed.
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
    """Refuse what cannot be meant, before anything is looked for."""
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        raise chosen.NotElsewhere("`chaos`")
    drawing = [name for name in ("mtbf", "kinds", "seed", "links") if options[name]]
    if options["path"] and drawing:
        raise UserError(f"--plan says it all; leave --{drawing[0].removesuffix('s')} out")
    if not options["path"] and not options["mtbf"]:
        raise UserError("say --plan FILE, or --mtbf 5s to have one drawn")
    if options["faults"] and options["span"]:
        raise UserError("say --faults N or --for TIME, not both")
    if options["dry"] and options["as_json"]:
        raise UserError("--dryrun prints YAML, which --plan reads; leave --json out")


def _planned(options: dict[str, Any], victim: "Victim") -> "tuple[tuple[Fault, ...], int | None]":
    """Return the plan of a file or a seed, as far as it is to be followed."""
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
        raise UserError(f"no rank of {victim.job} runs on this host; run `loom chaos` there")
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
        echo(f"- {yaml.safe_dump(fault.said(), default_flow_style=True, sort_keys=False).strip()}")
    return 0


def _confirm(victim: "Victim", plan: "tuple[Fault, ...]", yes: bool) -> None:
    if not plan:
        raise UserError("the plan holds no fault; give it more time or a smaller --mtbf")
    if not yes and sys.stdin.isatty():
        kinds = ", ".join(dict.fromkeys(fault.kind for fault in plan))
        click.confirm(f"hurt {victim.job} {len(plan)} times ({kinds})?", abort=True)


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
    faults = tuple(fault.said() for fault in plan)
    head = SeriesHead(os.urandom(6).hex(), job, seed, time.time(), len(plan), faults)
    with alone(victim), _logged(victim, head.chaos) as (log, no_log):
        place = options["against"], settings.environment(), _api(), log, no_log
        judge = judgement.opened(job, victim.folder, *place)
        until = seconds(options["span"], "--for") if options["span"] else float("inf")
        with Guardian(victim.folder):
            show = (lambda _: None) if options["as_json"] else _tell
            chaos = FaultSeries(victim, plan, judge, head, limit, until, show).run()
        found = judge.end(chaos)
    _hand_over(found, options, report.lines)
    return report.EXIT_CODES[found["verdict"]]


@contextlib.contextmanager
def _logged(victim: "Victim", name: str) -> "Iterator[tuple[Path | None, str]]":
    """Have the ranks log the digests of their steps during a series, unless they do already.

    Yields where, or why not.
    """
    from torchloom import settings
    from torchloom.chaos.checker.case import ledger_of

    if ledger_of(victim.folder, settings.environment()) is not None:
        yield None, ""
        return
    with victim.logged(f"digests-{name}") as why:
        yield victim.folder / f"digests-{name}", why


def _api() -> str:
    """Return where the plane's HTTP server is; nothing where it has none."""
    from torchloom.client import plane

    url = str((plane.find() or {}).get("url", ""))
    return url if url.startswith("http") else ""


def _tell(strike: "Strike") -> None:
    """Say what has just become known of a fault."""
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
