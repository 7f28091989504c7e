"""`loom plot`: plot a run's metrics in the terminal or to a file."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json, printable, say
from torchloom.errors import Failure, NotFound
from torchloom.settings import environment

if TYPE_CHECKING:
    from torchloom.history.series import MetricSeries

_MOST = 4  # metrics that are plotted when none is named
_BUCKETS = 2000  # of a plotted curve: more than a picture is wide
_POINTS = 10_000  # of a curve that is smoothed or printed
_COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")


class NoMetrics(Failure):
    """There is nothing to plot."""

    code = "no_metrics"


@click.command(
    "plot",
    cls=LoomCommand,
    epilog=examples("loom plot gpt loss", "loom plot gpt loss lr --smooth 0.9 --out curves.svg"),
)
@click.argument("run")
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write .png, .svg or .pdf."
)
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="W",
    help="Exponential smoothing: 0 to 0.99.",
)
@click.option(
    "--by", type=click.Choice(("step", "time")), default="step", help="Unit of the x axis."
)
@click.option("--all-ranks", is_flag=True, help="Draw every rank, not only the lowest.")
@click.option(
    "--replaced",
    is_flag=True,
    help="Also draw the points that a restart repeated: dots, in a file a dashed line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of curves.")
def command(
    run: str,
    metrics: tuple[str, ...],
    out: Path | None,
    smooth: float,
    by: Any,
    all_ranks: bool,
    replaced: bool,
    as_json: bool,
) -> None:
    """Plot the METRICs of RUN; by default the first few."""
    from torchloom.history import plot

    more = {"all_ranks": all_ranks, **({"replaced": True} if replaced else {})}
    job, curves = _curves(run, metrics, more, ends=bool(smooth or as_json))
    if replaced and not any(curve.replaced for curve in curves):
        say(f"no restart of {job} has repeated a step of these curves")
    curves = [curve.smoothed(smooth) if smooth else curve for curve in curves]
    if as_json:
        echo_json([_shape(curve, replaced) for curve in curves])
        return
    panels = plot.panels([replace(curve, name=printable(curve.name)) for curve in curves])
    if out is not None:
        plot.to_file(panels, out, by, job)
        say(f"wrote {out}")
        return
    columns, rows = _room()
    for line in plot.in_text(panels, columns, rows, by, _painter()):
        echo(line)


def _curves(
    run: str, metrics: tuple[str, ...], more: dict[str, bool], ends: bool
) -> tuple[str, list["MetricSeries"]]:
    """Return the job's id and the curves to plot, in the order of their names."""
    from torchloom.client import chosen
    from torchloom.history.series import MetricSeries

    known = chosen.ask("curves", job=run, names=[])
    names = _wanted(known["job"], known["names"], metrics)
    buckets = _POINTS if ends else _BUCKETS
    reply = chosen.ask("curves", job=known["job"], names=names, buckets=buckets, **more)
    curves = [MetricSeries.of_buckets(one, ends) for one in reply["curves"]]
    return known["job"], sorted(curves, key=lambda curve: names.index(curve.name))


def _wanted(job: str, names: list[str], metrics: tuple[str, ...]) -> list[str]:
    if not names:
        raise NoMetrics(f"{job} has no metrics yet; `run.log(loss=...)` logs one")
    for name in metrics:
        if name not in names:
            raise NotFound("metric", name, names, f"known: {', '.join(names)}")
    own = [name for name in names if not name.startswith("loom/")] or names
    if not metrics and len(own) > _MOST:
        say(f"plotting the first {_MOST} of {len(own)} metrics: {printable(', '.join(own))}")
    return list(dict.fromkeys(metrics)) or own[:_MOST]


def _shape(curve: "MetricSeries", replaced: bool) -> dict[str, Any]:
    older = [{"generation": one.generation, **_columns(one)} for one in curve.replaced]
    more = {"replaced": older} if replaced else {}
    return {"name": curve.name, "rank": curve.rank, **_columns(curve), **more}


def _columns(curve: "MetricSeries") -> dict[str, Any]:
    from math import isfinite

    values = [value if isfinite(value) else str(value) for value in curve.values]
    return {"steps": list(curve.steps), "times": list(curve.times), "values": values}


def _room() -> tuple[int, int]:
    import shutil

    columns, rows = shutil.get_terminal_size((80, 24))
    return max(30, columns), max(10, rows - 2)


def _painter() -> Any:
    """Return the function that colours curves; it does nothing without a colour terminal."""
    from torchloom.history.plot import unpainted

    if not sys.stdout.isatty() or environment().get("NO_COLOR"):
        return unpainted
    return lambda text, colour, dim: click.style(
        text, fg=_COLOURS[colour % len(_COLOURS)], dim=dim or None
    )
