"""`loom export`: write one or several runs to a self-contained HTML file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.output import say
from torchloom.errors import UserError

if TYPE_CHECKING:
    from torchloom.cli.export.report import ExportedRun

_LINES = 200  # of each rank's log
_MOST = 8  # runs of one file
_STDOUT = Path("-")


@click.command(
    "export",
    cls=LoomCommand,
    epilog=examples("loom export gpt", "loom export gpt-1 gpt-2 -o report.html"),
)
@click.argument("names", nargs=-1, required=True, metavar="RUN [RUN]...")
@click.option(
    *("-o", "--output", "output"),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file; - is stdout. Default: RUN.html.",
)
@click.option(
    *("--last", "last"),
    type=Number(0, 10_000),
    default=_LINES,
    metavar="N",
    help=f"Log lines per rank, 0 for none; default {_LINES}.",
)
@click.option("-y", "--yes", is_flag=True, help="Replace an existing FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as one JSON object.")
def command(
    names: tuple[str, ...], output: Path | None, last: int, yes: bool, as_json: bool
) -> None:
    """Write a run to one HTML file: charts, timeline, ranks, logs, settings.

    Needs no plane and no network, neither now nor when the file is opened. Several runs share
    their charts. Values of environment variables, tokens and passwords are left out; log lines
    are not filtered.
    """
    from torchloom.cli.export import page
    from torchloom.cli.export.report import open_store

    if len(names) > _MOST:
        raise UserError(f"name 1 to {_MOST} runs, not {len(names)}")
    _refuse_elsewhere()
    template = "" if as_json else page.page()
    if output is not None and output != _STDOUT:
        page.check(output, yes)
    with open_store() as store:
        found = _found(names, store)
        target = output or (_STDOUT if as_json else Path(f"{found[0].id}.html"))
        if output is None and target != _STDOUT:
            page.check(target, yes)
        report = _report(found, last)
    text = f"{page.as_text(report)}\n" if as_json else page.filled(template, report)
    _put(target, text.encode(), "" if as_json else "; it opens in any browser")


def _refuse_elsewhere() -> None:
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        raise chosen.NotElsewhere("`loom export`")


def _found(names: tuple[str, ...], store: Any) -> "list[ExportedRun]":
    from torchloom.cli.export.report import find_run

    found = {run.id: run for run in (find_run(name, store) for name in names)}
    return list(found.values())


def _report(found: "list[ExportedRun]", last: int) -> dict[str, Any]:
    from importlib.metadata import version

    from torchloom.cli.export.report import TOTAL, differences, run_report
    from torchloom.launch.records.folder import now

    runs = [run_report(run, last, TOTAL // len(found)) for run in found]
    return {
        "version": 1,
        "made_at": now(),
        "made_by": version("torchloom"),
        "runs": runs,
        "compared": differences(found),
    }


def _put(target: Path, data: bytes, words: str) -> None:
    """Write the bytes unchanged: the page contains the digest of its script."""
    from torchloom.cli.export import page

    if target == _STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    page.write(target, data)
    say(f"{target}: {len(data) / 1e6:.1f} MB{words}")
