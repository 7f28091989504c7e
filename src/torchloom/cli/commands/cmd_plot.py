"""`loom plot`: a run's curves, in the terminal or as a picture."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json, printable, say
from torchloom.errors import Failure, NotFound
from torchloom.settings import environment

if TYPE_CHECKING:
    from torchloom.history.series import MetricSeries

_MOST = 4  # metrics that are drawn when none is named
_BUCKETS = 2000  # of a curve that is drawn: more than a picture is wide
_POINTS = 10_000  # of one whose points matter
_COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")


class NoMetrics(Failure):
    """There is nothing to draw."""

    code = "no_metrics"


@click.command("plot", cls=LoomCommand)
@click.argument("run")
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="A .png, .svg, .pdf.")
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="W",
    help="Average with what came before: 0 to 0.99.",
)
@click.option("--by", type=click.Choice(("step", "time")), default="step", help="What goes across.")
@click.option("--all-ranks", is_flag=True, help="A curve a rank, not the lowest rank alone.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of curves.")
def command(
    run: str,
    metrics: tuple[str, ...],
    out: Path | None,
    smooth: float,
    by: Any,
    all_ranks: bool,
    as_json: bool,
) -> None:
    """Draw the curves of RUN: the METRICs named, else the first few it has."""
    from torchloom.history import plot

    job, curves = _curves(run, metrics, all_ranks, ends=bool(smooth or as_json))
    curves = [curve.smoothed(smooth) if smooth else curve for curve in curves]
    if as_json:
        echo_json([_shape(curve) for curve in curves])
        return
    panels = plot.panels([replace(curve, name=printable(curve.name)) for curve in curves])
    if out is not None:
        plot.to_file(panels, out, by, job)
        say(f"drawn into {out}")
        return
    columns, rows = _room()
    for line in plot.in_text(panels, columns, rows, by, _painter()):
        echo(line)


def _curves(
    run: str, metrics: tuple[str, ...], all_ranks: bool, ends: bool
) -> tuple[str, list["MetricSeries"]]:
    """Return the job that is meant and the curves to draw, in the order of their names."""
    from torchloom.client import chosen
    from torchloom.history.series import MetricSeries

    known = chosen.ask("curves", job=run, names=[])
    names = _wanted(known["job"], known["names"], metrics)
    buckets = _POINTS if ends else _BUCKETS
    told = chosen.ask("curves", job=known["job"], names=names, all_ranks=all_ranks, buckets=buckets)
    curves = [MetricSeries.of_buckets(one, ends) for one in told["curves"]]
    return known["job"], sorted(curves, key=lambda curve: names.index(curve.name))


def _wanted(job: str, names: list[str], metrics: tuple[str, ...]) -> list[str]:
    if not names:
        raise NoMetrics(f"{job} has no metric yet; `run.log(loss=...)` gives it one")
    for name in metrics:
        if name not in names:
            raise NotFound("metric", name, names, f"there are {', '.join(names)}")
    own = [name for name in names if not name.startswith("loom/")] or names
    if not metrics and len(own) > _MOST:
        say(f"{len(own)} metrics, the first {_MOST} are drawn: {printable(', '.join(own))}")
    return list(dict.fromkeys(metrics)) or own[:_MOST]


def _shape(curve: "MetricSeries") -> dict[str, Any]:
    from math import isfinite

    values = [value if isfinite(value) else str(value) for value in curve.values]
    return {
        "name": curve.name,
        "rank": curve.rank,
        "steps": list(curve.steps),
        "times": list(curve.times),
        "values": values,
    }


def _room() -> tuple[int, int]:
    import shutil

    columns, rows = shutil.get_terminal_size((80, 24))
    return max(30, columns), max(10, rows - 2)


def _painter() -> Any:
    """Return what colours curves; nothing where colours are unwanted or there is no terminal."""
    from torchloom.history.plot import unpainted

    if not sys.stdout.isatty() or environment().get("NO_COLOR"):
        return unpainted
    return lambda text, colour: click.style(text, fg=_COLOURS[colour % len(_COLOURS)])
