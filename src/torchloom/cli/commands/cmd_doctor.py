"""`loom doctor`: check this machine, and clean up what crashed launches left."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import clip, echo_json, paint, printable, rewrite_line
from torchloom.errors import UserError

if TYPE_CHECKING:
    from torchloom.doctor.checks import CheckFinding, HostPlace
    from torchloom.rules.retention import RetentionLimits

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
_LOGS = ("local", "log_dir")  # section and key of the log folder in a config file
_PATIENCE = 5.0  # seconds for the plane to report on its databases
_ORDER = ("problem", "note", "ok")
_WIDTH = 9  # of the first column


@click.command(
    "doctor",
    cls=LoomCommand,
    epilog=examples(
        "loom doctor --quick",
        "loom doctor --hostfile hosts.txt",
        "loom doctor --clean --dryrun    # shows what would be removed",
    ),
)
@click.option("--quick", is_flag=True, help="Skip the checks that import torch.")
@click.option(
    "--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="Also check this hostfile."
)
@click.option("--clean", is_flag=True, help="Remove leftovers of crashes and expired runs.")
@click.option(
    "--dryrun", "--dry-run", "dry", is_flag=True, help="With --clean: only show what would be done."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(quick: bool, hostfile: Path | None, clean: bool, dry: bool, as_json: bool) -> int:
    """Check this machine: Python, torch, devices, network, folders, leftovers of crashes.

    Exits with 1 if a problem is found.
    """
    if dry and not clean:
        raise UserError("--dryrun needs --clean; without it nothing is changed")
    place = _place(hostfile)
    if clean:
        return _clean(place, dry, as_json)
    findings = _checks(place, quick, show=not as_json) + _retention() + _databases_of(place.home)
    if as_json:
        echo_json([{**asdict(each), "ok": each.ok} for each in findings])
    else:
        _print(findings)
    return 0 if all(each.ok for each in findings) else 1


def _place(hostfile: Path | None) -> "HostPlace":
    from torchloom.doctor.checks import HostPlace
    from torchloom.launch.host.identity import host_name
    from torchloom.runner import config

    logs = next((v for section, key, v, _ in config.origins() if (section, key) == _LOGS), None)
    return HostPlace(
        env=settings.environment(),
        own_host=host_name(),
        home=settings.loom_home(),
        runtime=settings.runtime_dir(),
        user=settings.user_name(),
        logs=Path(logs).expanduser().absolute() if logs else None,
        hostfile=hostfile,
        databases=_databases(settings.loom_home()),
    )


def _databases(home: Path) -> Path | None:
    """Return the folder of the plane's databases if it is not the default one."""
    if (home / "plane" / "state.db").exists() or not (home / "plane").is_dir():
        return None
    from torchloom.weaver.store.place import place_of

    return place_of(home, settings.environment()).folder


def _retention() -> "list[CheckFinding]":
    from torchloom.runner import retention

    return retention.findings()


def _databases_of(home: Path) -> "list[CheckFinding]":
    """Check the databases and their backups."""
    from torchloom.client import plane
    from torchloom.errors import LoomError
    from torchloom.weaver.store import daily_backup, integrity
    from torchloom.weaver.store.place import place_of

    try:
        reported = plane.ask("status", _PATIENCE).get("problems", {}).values()
    except (LoomError, OSError):  # no plane runs, or none that answers
        reported = ()
    place = place_of(home, settings.environment())
    return integrity.findings(place, reported) + daily_backup.findings(home, place)


def _checks(place: "HostPlace", quick: bool, show: bool) -> "list[CheckFinding]":
    """Run the checks; a terminal shows which one is running."""
    from torchloom.doctor.checks import CHECKS, SLOW, run_checks

    live = show and sys.stderr.isatty()

    def show_name(name: str) -> None:
        if live:
            rewrite_line(f"checking {name} ...")

    found = run_checks(place, CHECKS if quick else CHECKS + SLOW, show_name)
    if live:
        rewrite_line("")
    return found


def _print(findings: "Sequence[CheckFinding]") -> None:
    """Print problems first; good findings share one line if the screen is too small."""
    lines = [line for each in sorted(findings, key=_urgency) for line in _lines(each)]
    if len(lines) > _screen_rows():
        well = dict.fromkeys(each.name for each in findings if each.state == "ok")
        lines = [line for line in lines if not line.startswith("ok ")]
        lines += [clip(f"{'ok':<{_WIDTH}}{', '.join(well)}")]
    for line in lines:
        state = line[:_WIDTH].strip()
        click.echo(paint(line[:_WIDTH], _COLOURS[state]) + line[_WIDTH:] if state else line)


def _urgency(finding: "CheckFinding") -> int:
    return _ORDER.index(finding.state)


def _lines(finding: "CheckFinding") -> list[str]:
    """Return a finding in one line, cut to the terminal, and its whole remedy below."""
    import shutil
    import textwrap

    first = f"{finding.state:<{_WIDTH}}{finding.name:<11}{printable(finding.text)}"
    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000
    indent = " " * _WIDTH
    remedy = textwrap.wrap(
        f"-> {printable(finding.remedy)}",
        max(40, room),
        initial_indent=indent,
        subsequent_indent=f"{indent}   ",
        break_on_hyphens=False,
    )
    return [clip(first), *(remedy if finding.remedy else [])]


def _screen_rows() -> int:
    """Return the height of the terminal; unlimited in a pipe."""
    import shutil

    return shutil.get_terminal_size((80, 24)).lines - 1 if sys.stdout.isatty() else 10_000


def _clean(place: "HostPlace", dry: bool, as_json: bool) -> int:
    from torchloom.doctor.leftovers import Cleaned, clean, find
    from torchloom.runner import retention

    limits = retention.limits()  # a bad value is refused before anything is removed
    looked = (Cleaned(each, False, "would clean up") for each in find(place))
    rows, failed = [], False
    for each in looked if dry else clean(place):
        what = each.leftover
        pid = what.process.pid if what.process else None
        rows.append(
            {"kind": what.kind, "name": what.name, "job": what.job or None, "pid": pid}
            | {"done": each.done, "text": each.text}
        )
        failed = failed or not (each.done or dry)
        if not as_json:
            of = f" (of {what.job})" if what.job else ""
            click.echo(clip(printable(f"{each.text:<8} {what.kind} {what.name}{of}")))
    for old in _old(limits, dry):
        rows.append({"kind": old["kind"], "name": old["job"], "job": old["job"], "pid": None})
        rows[-1] |= {"done": old["done"], "text": old["text"]}
        failed = failed or not (old["done"] or dry)
        if not as_json:
            click.echo(clip(printable(f"{old['text']:<8} {old['kind']} {old['job']}")))
    if as_json:
        echo_json(rows)
    elif not rows:
        click.echo("nothing to clean")
    return 1 if failed else 0


def _old(limits: "RetentionLimits", dry: bool) -> "list[dict[str, Any]]":
    """Apply `[retention]` through the weaver; without a plane, remove run folders only."""
    from torchloom.client import plane
    from torchloom.client.errors import NoPlane

    if not limits.ages:
        return []
    try:
        found: list[dict[str, Any]] = plane.ask("retain", None, dry=dry)
    except NoPlane:
        from torchloom.launch.records import removal

        return removal.carry_out(limits, dry)
    return found
